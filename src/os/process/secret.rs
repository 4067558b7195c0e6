//! A secret that the processes of a user share and other users cannot read: a key in the keyring that the kernel keeps for
//! each user (keyrings(7), user-keyring(7)).
//!
//! ```text
//!   none ──(the first process that asks)──> a secret ──(renew, by one that knows it)──> another secret
//! ```

use std::sync::Mutex;
use std::time::Duration;

use linux_keyutils::{Key, KeyError, KeyPermissionsBuilder, KeyRing, KeyRingIdentifier, Permission};
use rustix::rand::{GetRandomFlags, getrandom};

use super::fork;

const NAME: &str = "pagestream";
/// Two processes can store a secret at the same moment. After this time both have, and read the one that was stored last.
const SETTLED: Duration = Duration::from_millis(2);

pub type Secret = [u8; 16];

/// Held by the thread that stores the first secret: the others of this process find that one.
static FIRST: Mutex<()> = Mutex::new(());

/// Returns the secret of this user; `None` where the kernel keeps no keys for this process, as in many containers.
pub fn of_this_user() -> Option<Secret> {
    of(NAME)
}

/// Replaces the secret, unless another process has done so since this one read `known`.
pub fn renew(known: &Secret) {
    renew_of(NAME, known);
}

/// Returns the secret of a name.
fn of(name: &str) -> Option<Secret> {
    stored(name).or_else(|| {
        fork::with_lock(&FIRST, |()| {
            stored(name).or_else(|| {
                store_first(name, &made_up()?).ok()?;
                std::thread::sleep(SETTLED);
                stored(name)
            })
        })
    })
}

fn renew_of(name: &str, known: &Secret) {
    if stored(name).as_ref() != Some(known) {
        return;
    }
    if let (Ok(key), Some(another)) = (key(name), made_up())
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

fn key(name: &str) -> Result<Key, KeyError> {
    user_ring()?.search(name)
}

fn stored(name: &str) -> Option<Secret> {
    let mut secret = Secret::default();
    let length = key(name).and_then(|key| key.read(&mut secret)).ok()?;
    (length == secret.len()).then_some(secret)
}

/// Stores a secret where there is none. Only a process that possesses a key can change its permissions, and a process
/// possesses the keys of its own keyring. So the key is made there, and linked to the user's keyring once all processes of
/// the user may read it.
fn store_first(name: &str, secret: &Secret) -> Result<(), KeyError> {
    let permissions =
        KeyPermissionsBuilder::builder().posessor(Permission::ALL).user(Permission::ALL).build();
    let own = KeyRing::from_special_id(KeyRingIdentifier::Process, true)?;
    let key = own.add_key(name, secret)?;
    let stored = key.set_perms(permissions).and_then(|()| user_ring()?.link_key(key));
    own.unlink_key(key)?;
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of a name of the test's own: others rely on that of the user.
    struct OwnKey(String);

    impl Drop for OwnKey {
        fn drop(&mut self) {
            let _ = key(&self.0).and_then(|key| key.invalidate());
        }
    }

    #[test]
    fn a_secret_stays_until_one_that_knows_it_renews_it() {
        let own = OwnKey(format!("pagestream-test/{}", std::process::id()));
        let Some(first) = of(&own.0) else {
            assert!(std::env::var_os("PAGESTREAM_TEST_REQUIRE_REAL").is_none(), "keyrings are needed");
            return;
        };
        let name = own.0.clone();
        assert_eq!(std::thread::spawn(move || of(&name)).join().expect("no panic"), Some(first));
        renew_of(&own.0, &first.map(|byte| !byte));
        assert_eq!(of(&own.0), Some(first));
        renew_of(&own.0, &first);
        assert!(of(&own.0).is_some_and(|another| another != first));
        assert_ne!(of_this_user(), of(&own.0));
    }
}
