//! Files: opening them, reading them, and where they lie.
//!
//! **What it promises.** Opening never blocks on a FIFO. It waits while another process gives back its lease (fcntl(2)), as
//! open(2) does. Interrupted calls are tried again, a bounded number of times. A file of a [`beneath::ConfinedFolder`] lies in that folder, whatever its
//! name and links say, and whatever others do to the folder meanwhile. Open files pass to processes of the same user alone.

pub mod beneath;
pub mod direct;
pub mod fsinfo;
pub mod open;
pub mod pass;
pub mod pread;
