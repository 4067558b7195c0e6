//! A secret that the processes of a user share and other users cannot read: a key in the keyring that the kernel keeps for
//! each user (keyrings(7), user-keyring(7)).
//!
//! ```text
//!   none ──(the first process that asks)──> a secret ──(renew, by one that knows it)──> another secret
//! ```

use std::time::Duration;

use linux_keyutils::{Key, KeyError, KeyPermissionsBuilder, KeyRing, KeyRingIdentifier, Permission};
use rustix::rand::{GetRandomFlags, getrandom};

const NAME: &str = "pagestream";
/// Two processes can store a secret at the same moment. After this time both have, and read the one that was stored last.
const SETTLED: Duration = Duration::from_millis(2);

pub type Secret = [u8; 16];

/// Returns the secret of this user; `None` where the kernel keeps no keys for this process, as in many containers.
pub fn of_this_user() -> Option<Secret> {
    stored().or_else(|| {
        store_first(&made_up()?).ok()?;
        std::thread::sleep(SETTLED);
        stored()
    })
}

/// Replaces the secret, unless another process has done so since this one read `known`.
pub fn renew(known: &Secret) {
    if stored().as_ref() != Some(known) {
        return;
    }
    if let (Ok(key), Some(another)) = (key(), made_up())
        && key.update(&another).is_ok()
    {
        std::thread::sleep(SETTLED);
    }
}

fn made_up() -> Option<Secret> {
    let mut secret = Secret::default();
    let length = getrandom(&mut secret[..], GetRandomFlags::empty()).ok()?;
    (length == secret.len()).then_some(secret)
}

fn user_ring() -> Result<KeyRing, KeyError> {
    KeyRing::from_special_id(KeyRingIdentifier::User, true)
}

fn key() -> Result<Key, KeyError> {
    user_ring()?.search(NAME)
}

fn stored() -> Option<Secret> {
    let mut secret = Secret::default();
    let length = key().and_then(|key| key.read(&mut secret)).ok()?;
    (length == secret.len()).then_some(secret)
}

/// Stores a secret where there is none. Only a process that possesses a key can change its permissions, and a process
/// possesses the keys of its own keyring. So the key is made there, and linked to the user's keyring once all processes of
/// the user may read it.
fn store_first(secret: &Secret) -> Result<(), KeyError> {
    let permissions =
        KeyPermissionsBuilder::builder().posessor(Permission::ALL).user(Permission::ALL).build();
    let own = KeyRing::from_special_id(KeyRingIdentifier::Process, true)?;
    let key = own.add_key(NAME, secret)?;
    let stored = key.set_perms(permissions).and_then(|()| user_ring()?.link_key(key));
    own.unlink_key(key)?;
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_stays_until_one_that_knows_it_renews_it() {
        let Some(first) = of_this_user() else {
            assert!(std::env::var_os("PAGESTREAM_TEST_REQUIRE_REAL").is_none(), "keyrings are needed");
            return;
        };
        assert_eq!(std::thread::spawn(of_this_user).join().expect("no panic"), Some(first));
        renew(&first.map(|byte| !byte));
        assert_eq!(of_this_user(), Some(first));
        renew(&first);
        assert_ne!(of_this_user(), Some(first));
    }
}
