//! Mappings whose memory is handed out.

mod replace;
mod table;

pub(in crate::os::fault) use replace::replace;
pub(crate) use table::mapped;
pub use table::{Damage, Guard, Mapped, set_hook, untold_damage};
