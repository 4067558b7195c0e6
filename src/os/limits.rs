//! Limits of the process, to say which one it was that bit.

use rustix::process::{Resource, getrlimit};

/// Why a mapping of `len` bytes got ENOMEM, as far as can be told.
pub fn explain_enomem(len: u64) -> String {
    if let Some(limit) = getrlimit(Resource::As).current {
        return format!(
            "RLIMIT_AS (ulimit -v) allows {limit} bytes of address space, a mapping of {len} more did not fit"
        );
    }
    let maps = std::fs::read("/proc/self/maps").map_or(0, |text| text.split(|&byte| byte == b'\n').count());
    let max_maps = read_number("/proc/sys/vm/max_map_count").unwrap_or(u64::MAX);
    if maps as u64 + 16 >= max_maps {
        return format!("the process has {maps} mappings and vm.max_map_count is {max_maps}");
    }
    format!("no room for a mapping of {len} bytes")
}

/// Likewise for private writable memory, which RLIMIT_DATA counts.
pub fn explain_private_memory(len: u64) -> String {
    match getrlimit(Resource::Data).current {
        Some(limit) => format!(": RLIMIT_DATA (ulimit -d) allows {limit} bytes, {len} more did not fit"),
        None => format!(": {}", explain_enomem(len)),
    }
}

/// What mlock(2) may take, for its EPERM and ENOMEM.
pub fn explain_memlock() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(limit) => format!(
            "RLIMIT_MEMLOCK (ulimit -l) allows {limit} bytes of locked memory; raise it or give the process CAP_IPC_LOCK"
        ),
        None => "RLIMIT_MEMLOCK is unlimited, so the memory itself could not be locked".into(),
    }
}

/// How many descriptors may be open, for EMFILE.
pub fn explain_nofile() -> String {
    let limit = getrlimit(Resource::Nofile).current.map_or("unlimited".to_owned(), |limit| limit.to_string());
    format!("RLIMIT_NOFILE (ulimit -n) is {limit}; close files or raise it")
}

fn read_number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
