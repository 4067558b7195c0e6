//! Mappings of which a page could not be read when those used it who have the memory. What they find there are
//! zeros ([`crate::os::fault::views`]); nothing more of such a mapping is handed out.

use crate::error::{Error, ReadCause, Result};
use crate::os::fault::{self, views};

use super::{Opened, View};

impl View {
    /// To be called each time that the memory is handed out.
    pub fn check(&self) -> Result<()> {
        fault::reinstall_sometimes();
        match self.region.as_ref().and_then(|region| region.damage()) {
            Some(damage) => Err(error_of(damage)),
            None => Ok(()),
        }
    }
}

impl Opened {
    /// Whether its mappings are what they were.
    pub fn check_views(&self) -> Result<()> {
        let copy_on_write = self.copy_on_write.get().and_then(|region| region.as_ref().ok());
        let damage = self.region.iter().chain(copy_on_write).find_map(|region| region.damage());
        damage.map_or(Ok(()), |damage| Err(error_of(damage)))
    }
}

/// Damage to any mapping, each told once.
pub fn untold_damage() -> Vec<Error> {
    views::untold_damage().into_iter().map(error_of).collect()
}

/// What is called by the signal's handler when a mapping is damaged, so async-signal-safe.
pub fn on_damage(hook: extern "C" fn()) {
    views::set_hook(hook);
}

/// The file may be closed, and its path lead elsewhere by now: this says what is known without asking anybody.
fn error_of(damage: views::Damage) -> Error {
    let cause = ReadCause::Damaged { size_at_open: damage.mapped_bytes, to_end: damage.to_end };
    Error::MappedRead { offset: damage.offset, length: damage.bytes, cause, path: damage.path }
}
