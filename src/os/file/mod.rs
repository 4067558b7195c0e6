//! Files: opening them, confined to a folder where that is asked for; reading them; where they lie.

pub mod beneath;
pub mod fsinfo;
pub mod open;
pub mod pread;
