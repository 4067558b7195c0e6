use super::*;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{CWD, FileType, inotify};

/// Nothing beside the folder.
fn none(_: &Path) -> Vec<Beside> {
    Vec::new()
}

/// `root/folder` with files and links, and `root/outside` with a secret.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("folder");
    std::fs::create_dir_all(folder.join("below/deeper")).expect("made");
    std::fs::create_dir(root.path().join("outside")).expect("made");
    for (name, text) in [("folder/a", "a"), ("folder/below/b", "b"), ("outside/secret", "secret")] {
        std::fs::write(root.path().join(name), text).expect("written");
    }
    let outside = root.path().join("outside");
    for (link, target) in [
        ("inside", PathBuf::from("below/b")),
        ("up and back", "below/../below/deeper/../b".into()),
        ("chain", "inside".into()),
        ("out", "../outside/secret".into()),
        ("out and back", "../folder/a".into()),
        ("chain out", "out".into()),
        ("absolute out", outside.join("secret")),
        ("absolute in", folder.join("a")),
        ("folder out", outside),
        ("loop", "loop".into()),
        ("dangling", "nothing".into()),
        ("magic", "/proc/self/exe".into()),
        ("null", "/dev/null".into()),
    ] {
        symlink(target, folder.join(link)).expect("linked");
    }
    (root, folder)
}

fn text(file: OwnedFd) -> String {
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text).expect("read");
    text
}

/// Watches a folder for opens other than by `O_PATH`.
struct Opens(OwnedFd);

impl Opens {
    fn of(path: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("made");
        inotify::add_watch(&watch, path, inotify::WatchFlags::OPEN).expect("watched");
        Self(watch)
    }

    /// Whether anything was opened since the last call.
    fn any(&self) -> bool {
        match rustix::io::read(&self.0, &mut [0_u8; 1 << 12]) {
            Err(Errno::AGAIN) => false,
            found => found.expect("readable") > 0,
        }
    }
}

#[test]
fn only_files_in_the_folder_are_opened() {
    let (root, path) = tree();
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    for (name, content) in
        [("a", "a"), ("below/b", "b"), ("inside", "b"), ("up and back", "b"), ("chain", "b")]
    {
        assert_eq!(folder.open_file(Path::new(name)).map(text), Ok(content.into()), "{name}");
    }
    // A link may leave and come back: the walk looks at nothing outside.
    for name in ["out and back", "absolute in"] {
        assert_eq!(folder.open_file(Path::new(name)).map(text), Ok("a".into()), "{name}");
    }
    let outside = |name: &str| Refusal::Outside(root.path().join(name));
    for (name, refusal) in [
        ("../outside/secret", outside("outside/secret")),
        ("below/../../outside/secret", outside("outside/secret")),
        ("out", outside("outside/secret")),
        ("chain out", outside("outside/secret")),
        ("absolute out", outside("outside/secret")),
        ("folder out/secret", outside("outside/secret")),
        ("magic", Refusal::Outside("/proc/self/exe".into())),
        ("null", Refusal::Outside("/dev/null".into())),
        ("..", Refusal::Outside(root.path().into())),
        ("below", Refusal::NotRegular(Kind::Directory)),
        (".", Refusal::NotRegular(Kind::Directory)),
        ("loop", Refusal::System(Errno::LOOP)),
        ("dangling", Refusal::System(Errno::NOENT)),
        ("a/b", Refusal::System(Errno::NOTDIR)),
    ] {
        assert_eq!(folder.open_file(Path::new(name)).map(text), Err(refusal), "{name}");
    }
}

#[test]
fn links_may_lead_into_another_root() {
    let (root, path) = tree();
    let outside = root.path().join("outside");
    let folder = ConfinedFolder::open(&path, std::slice::from_ref(&outside), none).expect("opened");
    for name in ["out", "chain out", "absolute out", "folder out/secret"] {
        assert_eq!(folder.open_file(Path::new(name)).map(text), Ok("secret".into()), "{name}");
    }
    assert_eq!(folder.open_file(Path::new("a")).map(text), Ok("a".into()));
    assert!(matches!(folder.open_file(Path::new("null")), Err(Refusal::Outside(_))));
    let wide = ConfinedFolder::open(&path, &[root.path().into()], none).expect("opened");
    assert_eq!(wide.open_file(Path::new("out")).map(text), Ok("secret".into()));
    assert_eq!(wide.names().expect("listed").len(), folder.names().expect("listed").len());
}

/// The folder lies in another root: links may lead into the rest of that root, and back.
#[test]
fn links_may_lead_into_the_rest_of_a_wider_root() {
    let (root, path) = tree();
    let deep = path.join("below/deeper");
    for (link, target) in [
        ("up", "../b"),
        ("far up", "../../../outside/secret"),
        ("up and down", "../deeper/../../a"),
        ("by a link", "../../out"),
        ("too far", "../../../../etc"),
    ] {
        symlink(target, deep.join(link)).expect("linked");
    }
    let folder = ConfinedFolder::open(&deep, &[root.path().into()], none).expect("opened");
    assert_eq!(folder.allowed().collect::<Vec<_>>(), [root.path()]);
    for (name, content) in [("up", "b"), ("far up", "secret"), ("up and down", "a"), ("by a link", "secret")]
    {
        assert_eq!(folder.open_file(Path::new(name)).map(text), Ok(content.into()), "{name}");
    }
    let outside = root.path().parent().expect("a parent").join("etc");
    assert_eq!(folder.open_file(Path::new("too far")).map(text), Err(Refusal::Outside(outside)));
    // The walk looks up the rest of the wider root again: a link there counts.
    std::fs::rename(path.join("below/b"), path.join("c")).expect("renamed");
    symlink("../c", path.join("below/b")).expect("linked");
    assert_eq!(folder.open_file(Path::new("up")).map(text), Ok("b".into()));
}

#[test]
fn another_root_may_be_spelled_by_a_link() {
    let (root, path) = tree();
    let alias = root.path().join("alias");
    symlink(root.path().join("outside"), &alias).expect("linked");
    symlink(alias.join("secret"), path.join("by alias")).expect("linked");
    let folder = ConfinedFolder::open(&path, std::slice::from_ref(&alias), none).expect("opened");
    assert_eq!(folder.open_file(Path::new("by alias")).map(text), Ok("secret".into()));
    assert_eq!(folder.open_file(Path::new("out")).map(text), Ok("secret".into()));
}

#[test]
fn the_opened_folder_stays_the_same() {
    let (root, path) = tree();
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    std::fs::rename(&path, root.path().join("elsewhere")).expect("renamed");
    symlink(root.path().join("outside"), &path).expect("linked");
    assert_eq!(folder.open_file(Path::new("a")).map(text), Ok("a".into()));
    assert_eq!(folder.open_file(Path::new("secret")).map(text), Err(Refusal::System(Errno::NOENT)));
}

/// openat2(2) answers EAGAIN to a path with `..` when anything anywhere was renamed meanwhile. A walk does not.
#[test]
fn renames_elsewhere_do_not_disturb_an_open() {
    let (root, path) = tree();
    let (one, other) = (root.path().join("outside/one"), root.path().join("outside/other"));
    std::fs::write(&one, "").expect("written");
    let (stop, renames) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::rename(&one, &other).and_then(|()| std::fs::rename(&other, &one)).expect("renamed");
                renames.fetch_add(2, Ordering::Relaxed);
            }
        });
        let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
        let mut found = Vec::new();
        while found.len() < 1000 || renames.load(Ordering::Relaxed) < 100 {
            found.push(folder.open_file(Path::new("up and back")).map(drop));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(found.into_iter().find(Result::is_err), None);
    });
}

/// The file is replaced between its two lookups.
#[test]
fn a_constantly_replaced_file_is_reported() {
    let (_root, path) = tree();
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    let (name, next) = (path.join("swapped"), path.join("next"));
    // Another file replaces the file that was seen, this many times.
    let opened_after = |swaps: usize| {
        std::fs::write(&name, "first").expect("written");
        let swapped = AtomicUsize::new(0);
        let found = folder.open_by(Path::new("swapped"), |folder, seen_name, found, seen| {
            if swapped.fetch_add(1, Ordering::Relaxed) < swaps {
                std::fs::write(&next, "another")
                    .and_then(|()| std::fs::rename(&next, &name))
                    .expect("swapped");
            }
            open_seen(folder, seen_name, found, seen)
        });
        (found.map(text), swapped.into_inner())
    };
    assert_eq!(opened_after(0), (Ok("first".into()), 1));
    assert_eq!(opened_after(1), (Ok("another".into()), 2));
    assert_eq!(opened_after(MAX_SWAPS - 1), (Ok("another".into()), MAX_SWAPS));
    assert_eq!(opened_after(usize::MAX), (Err(Refusal::Swapped), MAX_SWAPS));
}

/// The link appears between the two lookups of the name.
#[test]
fn a_link_that_replaces_a_file_is_not_followed_out() {
    let (root, path) = tree();
    let (secret, name, next) = (root.path().join("outside/secret"), path.join("swapped"), path.join("next"));
    let opens = Opens::of(&secret);
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    std::fs::write(&name, "s").expect("written");
    let swap_and_open = |folder: BorrowedFd<'_>, seen_name: &OsStr, found: &OwnedFd, seen: &Identity| {
        symlink(&secret, &next).and_then(|()| std::fs::rename(&next, &name)).expect("swapped");
        open_seen(folder, seen_name, found, seen)
    };
    // The name is looked up again, and the walk sees the link.
    let found = folder.open_by(Path::new("swapped"), swap_and_open).map(text);
    assert_eq!(found, Err(Refusal::Outside(secret.clone())));
    assert!(!opens.any());
    text(std::fs::File::open(&secret).expect("opened").into());
    assert!(opens.any());
}

/// The same, while another thread swaps the file for a link and back at random moments.
#[test]
#[ignore = "random: `cargo test -- --ignored stress`"]
fn stress_links_that_replace_a_file_are_not_followed_out() {
    let (root, path) = tree();
    let (secret, name, next) = (root.path().join("outside/secret"), path.join("swapped"), path.join("next"));
    let opens = Opens::of(&secret);
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    std::fs::write(&name, "s").expect("written");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                symlink(&secret, &next).and_then(|()| std::fs::rename(&next, &name)).expect("swapped");
                std::fs::write(&next, "s").and_then(|()| std::fs::rename(&next, &name)).expect("swapped");
            }
        });
        let found: Vec<_> = (0..20_000).map(|_| folder.open_file(Path::new("swapped")).map(text)).collect();
        stop.store(true, Ordering::Relaxed);
        let known = [Ok("s".into()), Err(Refusal::Swapped), Err(Refusal::Outside(secret.clone()))];
        assert_eq!(found.iter().find(|found| !known.contains(found)), None);
    });
    assert!(!opens.any());
}

/// Opening a FIFO wakes its writers, and opening a device may do anything.
#[test]
fn only_regular_files_are_opened_for_reading() {
    let (_root, path) = tree();
    let pipe = path.join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
    let opens = Opens::of(&pipe);
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    assert_eq!(folder.open_file(Path::new("pipe")).map(text), Err(Refusal::NotRegular(Kind::Fifo)));
    assert!(!opens.any());
    rustix::fs::open(&pipe, READ, Mode::empty()).expect("opened");
    assert!(opens.any());
}

#[test]
fn a_file_that_replaced_the_inspected_one_is_not_opened() {
    let (_root, path) = tree();
    let found = OwnedFd::from(std::fs::File::open(path.join("a")).expect("opened"));
    let folder = OwnedFd::from(std::fs::File::open(&path).expect("opened"));
    let seen = open::identity(found.as_fd()).expect("a file");
    let elsewhere = Identity { device: seen.device + 1, ..seen };
    let open = |name: &str, seen| {
        open_seen(folder.as_fd(), OsStr::new(name), &found, seen).map(|file| file.map(text))
    };
    assert_eq!(open("a", &seen), Ok(Some("a".into())));
    assert_eq!(open("below/b", &seen), Ok(None));
    assert_eq!(open("inside", &seen), Ok(None));
    assert_eq!(open("a", &elsewhere), Ok(None));
}

#[test]
fn the_limit_on_links_equals_the_kernels() {
    let (_root, path) = tree();
    let link = |number: usize| if number == 0 { "a".into() } else { format!("link {number}") };
    for number in 1..=MAX_LINKS + 1 {
        symlink(link(number - 1), path.join(link(number))).expect("linked");
    }
    let folder = ConfinedFolder::open(&path, &[], none).expect("opened");
    let (most, too_many) = (link(MAX_LINKS), link(MAX_LINKS + 1));
    assert_eq!(folder.open_file(most.as_ref()).map(text), Ok("a".into()));
    assert_eq!(folder.open_file(too_many.as_ref()).map(text), Err(Refusal::System(Errno::LOOP)));
}

/// Nearby folders are reached by their descriptors. A link in such a place counts as missing, whenever it was put
/// there.
#[test]
fn a_nearby_folder_counts_unless_it_is_a_link() {
    let (root, path) = tree();
    let beside = |name: &str, marker: Option<&str>| {
        let place = Beside { levels_up: 1, name: name.into(), marker: marker.map(Into::into) };
        ConfinedFolder::open(&path, &[], |_| vec![place]).expect("opened")
    };
    let out = Path::new("out");
    assert_eq!(beside("outside", None).open_file(out).map(text), Ok("secret".into()));
    assert_eq!(beside("outside", Some("secret")).open_file(out).map(text), Ok("secret".into()));
    assert!(matches!(beside("outside", Some("nothing")).open_file(out), Err(Refusal::Outside(_))));
    // Swap between the look at the path and the open: `beside` is called after the look.
    let (aside, outside) = (root.path().join("aside"), root.path().join("outside"));
    let swapped = ConfinedFolder::open(&path, &[], |_| {
        std::fs::rename(&outside, &aside).expect("renamed");
        symlink(&aside, &outside).expect("linked");
        vec![Beside { levels_up: 1, name: "outside".into(), marker: None }]
    });
    assert!(matches!(swapped.expect("opened").open_file(out), Err(Refusal::Outside(_))));
    // An open folder stays the same folder.
    std::fs::remove_file(&outside).expect("removed");
    std::fs::rename(&aside, &outside).expect("renamed");
    let folder = beside("outside", None);
    std::fs::rename(&outside, &aside).expect("renamed");
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("secret"), "another").expect("written");
    assert_eq!(folder.open_file(out).map(text), Ok("secret".into()));
}
