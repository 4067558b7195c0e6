//! Locking a file in memory (mlock(2)), so that none of its pages leave the page cache.

use crate::error::{Error, Result};
use crate::os::errno::{Code, system};
use crate::os::memory::map::Region;
use crate::os::process::{fork, limits};

use super::mode::Mode;
use super::opened::Opened;

/// Reads the file into memory and keeps it there.
pub fn lock(opened: &Opened) -> Result<()> {
    if let Some(region) = mapped(opened, "lock")? {
        lock_region(opened, region)?;
    }
    fork::with_lock(&opened.hints, |hints| hints.locked = true);
    Ok(())
}

/// Calls munlock(2), so that the kernel may drop the file's pages again.
pub fn unlock(opened: &Opened) -> Result<()> {
    let region = mapped(opened, "unlock")?;
    fork::with_lock(&opened.hints, |hints| hints.locked = false);
    region.map_or(Ok(()), |region| {
        region.unlock().map_err(|errno| system("cannot unlock the mapping", opened.path(), errno, ""))
    })
}

/// Returns the mapping, `None` for an empty file, or an error in `read` mode.
fn mapped<'a>(opened: &'a Opened, verb: &str) -> Result<Option<&'a Region>> {
    match &opened.region {
        None if opened.facts.mode == Mode::Read => {
            Err(Error::argument(format!("nothing to {verb}: in \"read\" mode the file is not mapped")))
        }
        region => Ok(region.as_deref()),
    }
}

pub(super) fn lock_region(opened: &Opened, region: &Region) -> Result<()> {
    region.lock().map_err(|errno| {
        let advice = match errno {
            Code::PERM | Code::NOMEM | Code::AGAIN => limits::explain_memlock(),
            _ => String::new(),
        };
        system("cannot lock the mapping in memory", opened.path(), errno, advice)
    })
}
