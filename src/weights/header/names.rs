//! [`NameOrder`]: sorted keys, for fast lookup. Names of one model begin alike, so the 8 bytes after the shared prefix
//! decide most comparisons.

use super::table::HEADER;
use crate::allocate::{self, OutOfMemory};

/// Indices of items in order of their keys. Equal keys stay in the order of the header.
#[derive(Debug, Default)]
pub(super) struct NameOrder {
    /// The length of the prefix that all keys share.
    shared_bytes: usize,
    /// The [`leading_bytes`] of each key after the prefix, in order.
    leading: Vec<u64>,
    pub indices: Vec<u32>,
}

impl NameOrder {
    pub fn new<'t, T>(items: &[T], key: impl Fn(&T) -> &'t str) -> Result<Self, OutOfMemory> {
        let name = |index: u32| key(&items[index as usize]).as_bytes();
        let shared_bytes = shared_prefix(items.iter().map(|item| key(item).as_bytes()));
        let leading_of = |index| (leading_bytes(&name(index)[shared_bytes..]), index);
        let mut order = allocate::collected((0..items.len() as u32).map(leading_of), HEADER)?;
        order.sort_unstable_by(|&(a_bytes, a), &(b_bytes, b)| {
            a_bytes.cmp(&b_bytes).then_with(|| name(a).cmp(name(b))).then_with(|| a.cmp(&b))
        });
        let leading = allocate::collected(order.iter().map(|&(leading, _)| leading), HEADER)?;
        let indices = allocate::collected(order.iter().map(|&(_, index)| index), HEADER)?;
        Ok(Self { shared_bytes, leading, indices })
    }

    /// Returns the memory of the order in bytes, besides the value itself.
    pub fn memory_bytes(&self) -> usize {
        self.leading.capacity() * size_of::<u64>() + self.indices.capacity() * size_of::<u32>()
    }

    /// Returns the position of a key in the order. `name_of` returns the key of an index.
    pub fn rank<'t>(&self, name: &str, name_of: impl Fn(u32) -> &'t str) -> Option<usize> {
        let first = name_of(*self.indices.first()?).as_bytes();
        let rest = name.as_bytes().strip_prefix(&first[..self.shared_bytes])?;
        let leading = leading_bytes(rest);
        let start = self.leading.partition_point(|&other| other < leading);
        let alike = self.leading[start..].partition_point(|&other| other == leading);
        let indices = &self.indices[start..start + alike];
        indices.binary_search_by(|&index| name_of(index).cmp(name)).ok().map(|rank| start + rank)
    }
}

fn shared_prefix<'t>(mut names: impl Iterator<Item = &'t [u8]>) -> usize {
    let Some(first) = names.next() else { return 0 };
    names.fold(first.len(), |shared, name| {
        first[..shared].iter().zip(name).take_while(|(a, b)| a == b).count()
    })
}

/// Returns the first 8 bytes as a number that sorts like the bytes.
fn leading_bytes(name: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(bytes.len());
    bytes[..length].copy_from_slice(&name[..length]);
    u64::from_be_bytes(bytes)
}
