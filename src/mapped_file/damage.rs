//! Damaged mappings: a page could not be read while user code was touching it. Zeros stand there now
//! ([`crate::os::fault::views`]), and nothing more of such a mapping is handed out.

use crate::error::{Error, ReadCause, Result};
use crate::os::fault::views;
use crate::os::memory::map::Region;

/// Refuses a mapping that is damaged.
pub(super) fn check(region: &Region) -> Result<()> {
    region.damage().map_or(Ok(()), |damage| Err(error_of(damage)))
}

/// Returns damage to any mapping, each once.
pub fn untold_damage() -> Vec<Error> {
    views::untold_damage().into_iter().map(error_of).collect()
}

/// The file may be closed, and its path lead elsewhere by now: this says what is known without asking anybody.
fn error_of(damage: views::Damage) -> Error {
    let cause = ReadCause::Damaged { size_at_open: damage.mapped_bytes, to_end: damage.to_end };
    Error::MappedRead { offset: damage.offset, length: damage.bytes, cause, path: damage.path }
}
