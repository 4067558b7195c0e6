//! The file system of a file, from `statx` and `/proc/self/mountinfo`. It serves people and messages: no decision
//! depends on a file system's name.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{AtFlags, StatxFlags};

/// A file's mount. Texts are empty if the system does not supply them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileSystem {
    /// Type as in mountinfo, e.g. `ext4`, `nfs4`, `fuse.sshfs`.
    pub kind: String,
    pub source: OsString,
    pub mount_point: OsString,
    /// Options of the mount, followed by the options of the file system.
    pub options: OsString,
    /// Whether reads are known to leave this machine.
    pub is_network: bool,
    /// The kernel's read-ahead window on this device, or `None` if it is unreadable.
    pub read_ahead_bytes: Option<u64>,
}

/// `STATX_MNT_ID` (Linux 5.8) and `STATX_MNT_ID_UNIQUE` (Linux 6.8), by number (linux/stat.h), because some versions of
/// rustix lack their names.
const MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Returns the number of the file's mount, or 0 if the kernel supplies none. The number is never reused, except by
/// older kernels, which may give it to another mount once this one is gone.
pub fn mount_number(file: BorrowedFd<'_>) -> u64 {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = |asked: StatxFlags| {
        let stat = rustix::fs::statx(file, "", flags, asked).ok()?;
        (stat.stx_mask & asked.bits() != 0).then_some(stat.stx_mnt_id)
    };
    told(UNIQUE_MOUNT_ID).or_else(|| told(MOUNT_ID)).unwrap_or(0)
}

/// File systems whose reads leave the machine. FUSE file systems have the prefix `fuse.`.
const NETWORK: &[&str] = &[
    "9p",
    "afs",
    "alluxio",
    "beegfs",
    "blobfuse",
    "blobfuse2",
    "ceph",
    "ceph-fuse",
    "cephfs",
    "cifs",
    "coda",
    "curlftpfs",
    "davfs",
    "gcsfuse",
    "geesefs",
    "gfs2",
    "glusterfs",
    "goofys",
    "gpfs",
    "hf-mount",
    "juicefs",
    "kafs",
    "lustre",
    "mount-s3",
    "mountpoint-s3",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "panfs",
    "rclone",
    "s3fs",
    "seaweedfs",
    "smb3",
    "smbfs",
    "sshfs",
    "wekafs",
];

pub fn file_system(file: BorrowedFd<'_>) -> FileSystem {
    find_mount(file).unwrap_or_default()
}

fn find_mount(file: BorrowedFd<'_>) -> Option<FileSystem> {
    // Turn each byte into one character, so that names that are not UTF-8 survive; `unescape` turns them back.
    let table: String = std::fs::read("/proc/self/mountinfo").ok()?.into_iter().map(char::from).collect();
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, MOUNT_ID).ok()?;
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let known_id = (stat.stx_mask & MOUNT_ID.bits() != 0).then_some(stat.stx_mnt_id);
    let lines = || table.lines().filter_map(MountLine::parse);
    // If a device has several mounts, the last one is on top.
    let line = match known_id {
        Some(id) => lines().find(|line| line.id == id),
        None => lines().rfind(|line| line.device == device),
    }?;
    Some(FileSystem { read_ahead_bytes: read_ahead_bytes(line.device), ..line.file_system })
}

/// One line of mountinfo, proc_pid_mountinfo(5).
struct MountLine<'a> {
    id: u64,
    device: &'a str,
    file_system: FileSystem,
}

impl<'a> MountLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let id = mount.next()?.parse().ok()?;
        let device = mount.nth(1)?;
        let mount_point = unescape(mount.nth(1)?);
        let mount_options = mount.next()?;
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?.to_owned();
        let source = unescape(file_system.next().unwrap_or(""));
        let options = unescape(&format!("{mount_options},{}", file_system.next().unwrap_or("")));
        let is_network = is_network(&kind);
        let file_system =
            FileSystem { kind, source, mount_point, options, is_network, read_ahead_bytes: None };
        Some(Self { id, device, file_system })
    }
}

fn is_network(kind: &str) -> bool {
    NETWORK.contains(&kind.strip_prefix("fuse.").unwrap_or(kind))
}

/// Undoes the escapes of mountinfo, which writes space, tab, newline and backslash as `\040` and so on. The text has
/// one character per byte.
fn unescape(text: &str) -> OsString {
    let bytes: Vec<u8> = text.chars().map(|byte| byte as u8).collect();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(out)
}

/// Returns the kernel's read-ahead window on the device with this number, or `None` if it is unreadable.
pub fn read_ahead_bytes_of(device: u64) -> Option<u64> {
    read_ahead_bytes(&format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// Returns the device's own setting, or for a partition its disk's setting.
fn read_ahead_bytes(device: &str) -> Option<u64> {
    let places = [
        format!("/sys/class/bdi/{device}/read_ahead_kb"),
        format!("/sys/dev/block/{device}/queue/read_ahead_kb"),
        format!("/sys/dev/block/{device}/../queue/read_ahead_kb"),
    ];
    let text = places.iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    text.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line =
            r"36 35 98:0 /root /mnt\0402 rw,noatime master:1 - fuse.sshfs host:/a\134b rw,errors=continue";
        let parsed = MountLine::parse(line).map(|line| line.file_system);
        let expected = FileSystem {
            kind: "fuse.sshfs".into(),
            source: r"host:/a\b".into(),
            mount_point: "/mnt 2".into(),
            options: "rw,noatime,rw,errors=continue".into(),
            is_network: true,
            read_ahead_bytes: None,
        };
        assert_eq!(parsed, Some(expected));
        assert!(MountLine::parse("36 35 98:0").is_none());
    }

    #[test]
    fn network_kinds() {
        for kind in ["nfs4", "lustre", "ceph", "fuse.ceph", "fuse.sshfs", "fuse.gcsfuse"] {
            assert!(is_network(kind), "{kind}");
        }
        for kind in ["ext4", "tmpfs", "fuse", "fuse.bindfs", "overlay"] {
            assert!(!is_network(kind), "{kind}");
        }
    }
}
