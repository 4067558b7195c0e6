//! [`Credentials`]: the identity by which the kernel decides which files a thread may open.

use rustix::process::{Gid, getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

/// Effective user, groups and effective capabilities of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    user: u32,
    group: u32,
    /// Supplementary groups. `None` if the kernel does not say.
    groups: Option<Vec<u32>>,
    capabilities: Option<CapabilitySet>,
}

impl Credentials {
    pub fn of_this_thread() -> Self {
        let groups = getgroups().ok().map(|groups| groups.into_iter().map(Gid::as_raw).collect());
        Self {
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            groups,
            capabilities: capabilities(None).ok().map(|sets| sets.effective),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_belong_to_the_thread_and_each_part_counts() {
        let own = Credentials::of_this_thread();
        assert_eq!(own, Credentials::of_this_thread());
        assert_eq!(own.user, geteuid().as_raw());
        assert!(own.groups.is_some() && own.capabilities.is_some());
        let fewer = own.capabilities.map(|own| own ^ CapabilitySet::CHOWN);
        for other in [
            Credentials { user: own.user + 1, ..own.clone() },
            Credentials { group: own.group + 1, ..own.clone() },
            Credentials { groups: Some(vec![own.group + 1]), ..own.clone() },
            Credentials { capabilities: fewer, ..own.clone() },
        ] {
            assert_ne!(own, other);
        }
    }
}
