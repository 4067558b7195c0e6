//! Which file has which tensor.

use std::sync::Arc;

use super::header::Header;

/// Of a name that the index has and the file has not.
pub const ABSENT: u32 = u32::MAX;

/// A tensor: the number of its file, and its rank among the names of that file.
pub type At = (u32, u32);

/// The names of a checkpoint. They stand in the headers; here are numbers alone.
#[derive(Debug)]
pub struct Table {
    /// In order of names; `None` if the checkpoint is one file, whose header knows.
    by_name: Option<Vec<At>>,
    /// For each file, by ranks, what is not to be had from it; empty where everything is.
    hidden: Vec<Vec<bool>>,
}

impl Table {
    pub fn of_one_file() -> Self {
        Self { by_name: None, hidden: vec![Vec::new()] }
    }

    /// `by_name` is in order of names, which are all different.
    pub fn new(headers: &[Arc<Header>], mut by_name: Vec<At>) -> Self {
        by_name.shrink_to_fit();
        let mut served = vec![0_usize; headers.len()];
        for &(file, _) in &by_name {
            served[file as usize] += 1;
        }
        let mut hidden: Vec<_> = headers
            .iter()
            .zip(&served)
            .map(|(header, &served)| vec![true; if served == header.len() { 0 } else { header.len() }])
            .collect();
        for &(file, rank) in &by_name {
            if let Some(place) = hidden[file as usize].get_mut(rank as usize) {
                *place = false;
            }
        }
        Self { by_name: Some(by_name), hidden }
    }

    pub fn len(&self, headers: &[Arc<Header>]) -> usize {
        self.by_name.as_ref().map_or_else(|| headers[0].len(), Vec::len)
    }

    pub fn find(&self, headers: &[Arc<Header>], name: &str) -> Option<At> {
        let Some(by_name) = &self.by_name else { return Some((0, headers[0].rank(name)? as u32)) };
        let name_at = |&(file, rank): &At| headers[file as usize].nth(rank as usize).name;
        let found = by_name.binary_search_by(|at| name_at(at).cmp(name)).ok()?;
        Some(by_name[found])
    }

    /// In order of the files, and in each of the data.
    pub fn names<'h>(&'h self, headers: &'h [Arc<Header>]) -> impl Iterator<Item = &'h str> {
        headers.iter().zip(&self.hidden).flat_map(|(header, hidden)| {
            let served =
                move |name: &str| hidden.is_empty() || header.rank(name).is_some_and(|rank| !hidden[rank]);
            header.tensors_by_offset().map(|entry| entry.name).filter(move |name| served(name))
        })
    }
}

/// All tensors of all files in order of names; those of one name in order of the files.
pub fn sorted(headers: &[Arc<Header>]) -> Vec<At> {
    let ranks =
        |(file, header): (usize, &Arc<Header>)| (0..header.len() as u32).map(move |rank| (file as u32, rank));
    let mut all: Vec<At> = headers.iter().enumerate().flat_map(ranks).collect();
    // Stable, and quick where each file's names are sorted already.
    all.sort_by(|a, b| name(headers, *a).cmp(name(headers, *b)));
    all
}

pub fn name(headers: &[Arc<Header>], (file, rank): At) -> &str {
    headers[file as usize].nth(rank as usize).name
}

/// Goes through the names that the index has for a file, and those that it holds, both sorted: the rank of
/// each of the first, and the ranks that the index did not name.
pub fn match_names(header: &Header, wanted: &[&str]) -> (Vec<u32>, Vec<u32>) {
    let (mut ranks, mut unnamed) = (Vec::with_capacity(wanted.len()), Vec::new());
    let mut held = header.tensors().map(|entry| entry.name).zip(0_u32..).peekable();
    for &name in wanted {
        while let Some((_, rank)) = held.next_if(|(held, _)| *held < name) {
            unnamed.push(rank);
        }
        ranks.push(held.next_if(|(held, _)| *held == name).map_or(ABSENT, |(_, rank)| rank));
    }
    unnamed.extend(held.map(|(_, rank)| rank));
    (ranks, unnamed)
}
