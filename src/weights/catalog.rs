//! [`Catalog`]: maps tensors to files. Contradictions between files and index go into the [`Report`].

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::header::{Header, quoted};
use super::index::Index;
use super::last_wins::keep_last;
use super::locate::ShardPath;
use super::open::OpenedShard;
use super::report::Report;
use crate::allocate::{self, OutOfMemory};

/// The purpose of memory for a catalog.
const CATALOG: &str = "the names of a checkpoint";

/// A tensor: the number of its file, and its rank among the names of that file.
pub type TensorAt = (u32, u32);

/// The name table of a checkpoint. It holds only numbers, because the headers hold the names.
#[derive(Debug)]
pub enum Catalog {
    /// The header of the only file is the name table.
    OfOneFile,
    /// A name is the number of a file, `/` and the name there, because files may have equal names.
    Apart,
    ByName {
        /// In order of names.
        by_name: Vec<TensorAt>,
        /// For each file, whether the checkpoint takes some of its tensors from other files.
        has_others: Vec<bool>,
    },
}

impl Catalog {
    /// Takes each tensor from the file that the index names for it.
    pub fn by_index(
        index: &Index,
        opened: &[OpenedShard],
        shards: &[ShardPath],
        report: &mut Report,
    ) -> Result<Self, OutOfMemory> {
        let headers: Vec<_> = opened.iter().map(|shard| shard.header.clone()).collect();
        // The names of the index and of each header are sorted, so one walk through all of them suffices.
        let names = headers.iter().map(|header| header.tensors().map(|entry| entry.name).zip(0..).peekable());
        let mut held: Vec<_> = names.collect();
        let mut others = allocate::vec(headers.iter().map(|header| header.len()).sum(), CATALOG)?;
        let mut by_name: Vec<TensorAt> = allocate::vec(index.len(), CATALOG)?;
        for (name, file) in index.names() {
            while let Some((other, _)) = held[file].next_if(|(held, _)| *held < name) {
                others.push((file, other));
            }
            match held[file].next_if(|(held, _)| *held == name) {
                Some((_, rank)) => by_name.push((file as u32, rank)),
                None if opened[file].kept.is_none() => {} // the whole file is missing
                None => {
                    let path = shards[file].path.display();
                    report.missing_names.add(format_args!("{} ({path})", quoted(name)));
                }
            }
        }
        let rest = held.into_iter().enumerate();
        others.extend(rest.flat_map(|(file, names)| names.map(move |(name, _)| (file, name))));
        others.sort_unstable();
        for (file, name) in others {
            match index.shard_of(name) {
                Some(right) => {
                    let (used, other) = (shards[right].path.display(), shards[file].path.display());
                    report.second_copies.add(format_args!("{} (in {other}, used from {used})", quoted(name)));
                }
                None => {
                    report.unnamed.add(format_args!("{} ({})", quoted(name), shards[file].path.display()));
                }
            }
        }
        Ok(Self::new(&headers, by_name))
    }

    /// Takes each tensor from the last file that has it, as with `dict.update`.
    pub fn by_order(
        headers: &[Arc<Header>],
        shards: &[ShardPath],
        report: &mut Report,
    ) -> Result<Self, OutOfMemory> {
        let mut by_name = sorted(headers)?;
        for pair in by_name.windows(2).filter(|pair| name(headers, pair[0]) == name(headers, pair[1])) {
            let shard = |(file, _): TensorAt| &shards[file as usize];
            report.add_repeat(name(headers, pair[0]), shard(pair[0]), shard(pair[1]));
        }
        if report.repeated_names.count > 0 {
            keep_last(&mut by_name, |a, b| name(headers, *a) == name(headers, *b));
        }
        Ok(Self::new(headers, by_name))
    }

    /// Creates the catalog. The names in `by_name` must be sorted and distinct.
    fn new(headers: &[Arc<Header>], mut by_name: Vec<TensorAt>) -> Self {
        by_name.shrink_to_fit();
        let mut served = vec![0_usize; headers.len()];
        for &(file, _) in &by_name {
            served[file as usize] += 1;
        }
        let has_others = headers.iter().zip(served).map(|(header, served)| served < header.len()).collect();
        Self::ByName { by_name, has_others }
    }

    /// Removes files that supply no tensor, and renumbers the rest.
    pub fn keep_files(&mut self, is_kept: &[bool]) {
        let Self::ByName { by_name, has_others } = self else { return };
        let mut next = 0;
        let mut numbers = Vec::with_capacity(is_kept.len());
        for kept in is_kept {
            numbers.push(next);
            next += u32::from(*kept);
        }
        for (file, _) in by_name.iter_mut() {
            *file = numbers[*file as usize];
        }
        keep(has_others, is_kept);
    }

    pub fn len(&self, headers: &[Arc<Header>]) -> usize {
        match self {
            Self::ByName { by_name, .. } => by_name.len(),
            Self::OfOneFile | Self::Apart => headers.iter().map(|header| header.len()).sum(),
        }
    }

    pub fn find(&self, headers: &[Arc<Header>], wanted: &str) -> Option<TensorAt> {
        match self {
            Self::OfOneFile => Some((0, headers[0].rank(wanted)? as u32)),
            Self::Apart => {
                let (number, rest) = wanted.split_once('/')?;
                let file = number.parse::<u32>().ok()?;
                Some((file, headers.get(file as usize)?.rank(rest)? as u32))
            }
            Self::ByName { by_name, .. } => {
                let found = by_name.binary_search_by(|at| name(headers, *at).cmp(wanted)).ok()?;
                Some(by_name[found])
            }
        }
    }

    /// Returns the names in order of the files, and for each file in order of the data.
    pub fn names<'h>(&'h self, headers: &'h [Arc<Header>]) -> impl Iterator<Item = Cow<'h, str>> {
        (0..).zip(headers).flat_map(move |(number, header)| {
            let names = header.tensors_by_offset().map(|entry| entry.name);
            names.filter_map(move |name| match self {
                Self::OfOneFile => Some(name.into()),
                Self::Apart => Some(format!("{number}/{name}").into()),
                Self::ByName { has_others, .. } => {
                    let serves = || self.find(headers, name).is_some_and(|(file, _)| file == number);
                    (!has_others[number as usize] || serves()).then(|| name.into())
                }
            })
        })
    }
}

/// Keeps the items whose flag is set.
pub fn keep<T>(items: &mut Vec<T>, flags: &[bool]) {
    let mut flags = flags.iter();
    items.retain(|_| flags.next().is_some_and(|flag| *flag));
}

/// Returns all tensors of all files, sorted by name and then by file. It merges the files, whose names are sorted.
fn sorted(headers: &[Arc<Header>]) -> Result<Vec<TensorAt>, OutOfMemory> {
    let mut all = allocate::vec(headers.iter().map(|header| header.len()).sum(), CATALOG)?;
    let at = |file: u32, rank: u32| {
        let exists = (rank as usize) < headers[file as usize].len();
        exists.then(|| Reverse((name(headers, (file, rank)), file, rank)))
    };
    let mut next: BinaryHeap<_> = (0..headers.len() as u32).filter_map(|file| at(file, 0)).collect();
    while let Some(Reverse((_, file, mut rank))) = next.pop() {
        all.push((file, rank));
        // The next name is mostly of the same file: comparing it is cheaper than the way through the heap.
        while let Some(following) = at(file, rank + 1) {
            if next.peek().is_some_and(|least| following < *least) {
                next.push(following);
                break;
            }
            rank += 1;
            all.push((file, rank));
        }
    }
    Ok(all)
}

fn name(headers: &[Arc<Header>], (file, rank): TensorAt) -> &str {
    headers[file as usize].nth(rank as usize).name
}
