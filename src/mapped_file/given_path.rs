//! [`GivenPath`]: a path that stays valid after a change of directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::os::file::open;

use super::identity::is_same_file;

/// A path as the caller gave it, and the absolute path that it meant at that time.
///
/// Messages show the given path. Files are opened and checked by the absolute path, because a program may change its
/// directory before one of our threads, or a later call, uses the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenPath {
    pub given: Arc<Path>,
    /// Relative if no absolute path leads to the file.
    pub absolute: Arc<Path>,
}

impl GivenPath {
    pub fn new(given: &Path) -> Self {
        let absolute = absolute_of(given).filter(|absolute| absolute.as_os_str() != given.as_os_str());
        let given = Arc::<Path>::from(given);
        let absolute = absolute.map_or_else(|| given.clone(), Arc::from);
        Self { given, absolute }
    }

    /// Changes both paths in the same way.
    pub fn map(&self, change: impl Fn(&Path) -> PathBuf) -> Self {
        Self { given: change(&self.given).into(), absolute: change(&self.absolute).into() }
    }
}

/// Returns the absolute form of a path, or `None` if it does not lead to the same file: the current directory was
/// deleted, or this process may not search a directory above it.
fn absolute_of(path: &Path) -> Option<PathBuf> {
    if path.is_absolute() || path.as_os_str().is_empty() {
        return std::path::absolute(path).ok();
    }
    let current = std::env::current_dir().ok()?;
    let [by_path, here] = [&current, Path::new(".")].map(|it| open::identity_at(it).ok());
    is_same_file(&by_path?, &here?).then(|| std::path::absolute(current.join(path)).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_given_path_is_kept_and_the_absolute_one_leads_to_the_same_file() {
        let path = GivenPath::new(Path::new("./Cargo.toml"));
        assert_eq!(&*path.given, Path::new("./Cargo.toml"));
        assert_eq!(&*path.absolute, std::env::current_dir().expect("a directory").join("Cargo.toml"));
        let longer = path.map(|path| path.with_extension("lock"));
        assert_eq!(&*longer.given, Path::new("./Cargo.lock"));
        assert!(longer.absolute.is_file());
    }

    #[test]
    fn an_empty_path_stays_empty() {
        assert_eq!(&*GivenPath::new(Path::new("")).absolute, Path::new(""));
    }
}
