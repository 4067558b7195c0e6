//! Opens and reads files, and finds their file systems.
//!
//! **Guarantees.** Opening never blocks on a FIFO. It waits while another process gives back its lease (fcntl(2)), as
//! open(2) does. Interrupted calls are repeated, a bounded number of times. A file of a [`beneath::ConfinedFolder`]
//! lies in that folder, whatever its name and links say, and whatever other processes do to the folder meanwhile. Open
//! files pass only to processes of the same user.

pub mod beneath;
pub mod direct;
pub mod fsinfo;
pub mod open;
pub mod pass;
pub mod pread;
