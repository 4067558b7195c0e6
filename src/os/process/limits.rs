//! Limits of the process, for messages that name the limit reached.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Explains ENOMEM for a mapping of `len` bytes, as far as the limits allow.
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

/// Explains ENOMEM for private writable memory, which RLIMIT_DATA counts.
pub fn explain_private_memory(len: u64) -> String {
    match getrlimit(Resource::Data).current {
        Some(limit) => format!(": RLIMIT_DATA (ulimit -d) allows {limit} bytes, {len} more did not fit"),
        None => format!(": {}", explain_enomem(len)),
    }
}

/// Explains EPERM and ENOMEM of mlock(2).
pub fn explain_memlock() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(limit) => format!(
            "RLIMIT_MEMLOCK (ulimit -l) allows {limit} bytes of locked memory; raise it or give the process CAP_IPC_LOCK"
        ),
        None => "RLIMIT_MEMLOCK is unlimited, so the memory itself could not be locked".into(),
    }
}

/// Returns the maximum number of descriptors of this process.
pub fn nofile() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

/// Explains EMFILE.
pub fn explain_nofile() -> String {
    let limit = getrlimit(Resource::Nofile).current.map_or("unlimited".to_owned(), |limit| limit.to_string());
    format!("RLIMIT_NOFILE (ulimit -n) is {limit}; close files or raise it")
}

/// Returns the number of bytes that this process can still allocate without swapping or reaching the limit of its
/// control group.
pub fn available_memory_bytes() -> u64 {
    let free = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    free.unwrap_or(u64::MAX).min(cgroup_memory_bytes().unwrap_or(u64::MAX))
}

/// Returns the number of bytes that the tightest control group above this process leaves. Its page cache counts as
/// free, because the kernel drops that first (cgroups(7); memory.max and memory.current of version 2,
/// memory.limit_in_bytes and memory.usage_in_bytes of version 1).
fn cgroup_memory_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let left = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, files) = match controllers {
            "" => ("/sys/fs/cgroup", ["memory.max", "memory.current", "file"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"])
            }
            _ => return None,
        };
        // Inside a container the path is often a path of the host. Then the root is the container's own.
        let (root, path) = (Path::new(root), Path::new(path.trim_start_matches('/')));
        path.ancestors().filter_map(|group| left_in_group(&root.join(group), files)).min()
    });
    left.min()
}

fn left_in_group(folder: &Path, [limit, usage, cache]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| read_number(folder.join(name));
    let cached = std::fs::read_to_string(folder.join("memory.stat")).ok().and_then(|text| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|&(key, _)| key == cache)?.1.parse::<u64>().ok()
    });
    let used = number(usage)?.saturating_sub(cached.unwrap_or(0));
    Some(number(limit)?.saturating_sub(used))
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_leaves_its_limit_minus_its_usage_without_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        let names = ["memory.max", "memory.current", "file"];
        assert_eq!(left_in_group(folder.path(), names), None);
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        assert_eq!(left_in_group(folder.path(), names), Some(300));
        write("memory.stat", "anon 100\nfile 600\nfile_mapped 7\n");
        assert_eq!(left_in_group(folder.path(), names), Some(900));
        write("memory.current", "5000\n");
        assert_eq!(left_in_group(folder.path(), names), Some(0));
        write("memory.max", "max\n");
        assert_eq!(left_in_group(folder.path(), names), None);
    }

    #[test]
    fn available_memory_is_positive_and_at_most_the_total() {
        let total = std::fs::read_to_string("/proc/meminfo").expect("proc");
        let kib: u64 = total.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("MemTotal");
        assert!((1 << 20..=kib * 1024).contains(&available_memory_bytes()));
    }
}
