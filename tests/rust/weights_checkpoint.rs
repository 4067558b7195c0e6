//! `weights::checkpoint`: many files as one set of names.

use pagestream::internals::{
    Assembly, Checkpoint, CheckpointPath, Error, MappedFile, RequestedMode, Result, Strictness,
};
use std::path::{Path, PathBuf};

/// Writes a file with a one-byte tensor for each name. The byte is the position in `names`.
fn write(path: &Path, names: &[&str]) {
    let entries: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, at + 1)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..names.len()).map(|at| at as u8));
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn files_that_are_apart_may_have_the_same_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    write(&paths[0], &["b/c", "a"]);
    write(&paths[1], &["a", "b/c", "d"]);
    let list = CheckpointPath::Files(paths.to_vec());
    let list = list.locate(None, Strictness::Strict, &|_| Ok(())).expect("there");
    let found =
        Checkpoint::open(list, RequestedMode::Auto, Strictness::Strict, Assembly::Apart, &mut || true);
    let checkpoint = found.expect("whole");
    assert_eq!(checkpoint.len(), 5);
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["0/b/c", "0/a", "1/a", "1/b/c", "1/d"]);
    assert_eq!(["0/b/c", "0/a", "1/a", "1/b/c", "1/d"].map(|name| byte(&checkpoint, name)), [0, 1, 0, 1, 2]);
    for name in ["a", "2/a", "/a", "0/d", "0", "-1/a", "x/a", "4294967296/a"] {
        assert!(checkpoint.tensor(name).is_none(), "{name}");
    }
}

fn index(folder: &Path, pairs: &[(&str, &str)]) {
    let map: serde_json::Map<_, _> = pairs.iter().map(|&(name, file)| (name.into(), file.into())).collect();
    let json = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(folder.join("model.safetensors.index.json"), json).expect("written");
}

fn open_with(path: CheckpointPath, strictness: Strictness) -> Result<Checkpoint> {
    let list = path.locate(None, strictness, &|_| Ok(()))?;
    Checkpoint::open(list, RequestedMode::Auto, strictness, Assembly::Whole, &mut || true)
}

fn open(path: &Path) -> Result<Checkpoint> {
    open_with(CheckpointPath::Path(path.into()), Strictness::Strict)
}

fn refusal(found: Result<Checkpoint>) -> String {
    match found {
        Err(error @ Error::Safetensors { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn byte(checkpoint: &Checkpoint, name: &str) -> u8 {
    let (number, entry) = checkpoint.tensor(name).expect("there");
    let file = checkpoint.file(number).expect("open");
    file.file.opened().and_then(|opened| opened.read(entry.offset, entry.len)).expect("read")[0]
}

#[test]
fn names_come_in_order_of_the_files_and_then_of_the_data() {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("m-10.safetensors"), &["b", "a"]);
    write(&folder.path().join("m-2.safetensors"), &["z", "c"]);
    let checkpoint = open(folder.path()).expect("whole");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["z", "c", "b", "a"]);
    assert_eq!(["z", "c", "b", "a"].map(|name| byte(&checkpoint, name)), [0, 1, 0, 1]);
    index(folder.path(), &[("a", "m-10.safetensors"), ("z", "m-2.safetensors")]);
    let checkpoint = open(folder.path()).expect("whole");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!(checkpoint.len(), 2);
    assert!(checkpoint.tensor("c").is_none());
    assert_eq!(byte(&checkpoint, "a"), 1);
    assert!(checkpoint.warnings[0].contains("2 tensors are not named by the index"));
}

#[test]
fn one_error_reports_all_problems() {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("m-1"), &["a"]);
    std::fs::write(folder.path().join("m-4"), "short").expect("written");
    std::fs::create_dir(folder.path().join("m-5")).expect("made");
    index(
        folder.path(),
        &[("a", "m-1"), ("missing", "m-1"), ("gone", "m-3"), ("broken", "m-4"), ("folder", "m-5")],
    );
    let message = refusal(open(folder.path()));
    for words in [
        "model.safetensors.index.json: the checkpoint is not whole: 1 file is missing: ",
        "m-3; 1 file is refused: ",
        "m-5 (cannot open: Is a directory: it is a directory, not a file); 1 file is broken: ",
        "m-4 (Error while deserializing header: header too small: found 5 bytes",
        "1 tensor is not in the file that the index names for it: \"missing\" (",
    ] {
        assert!(message.contains(words), "{words}\n{message}");
    }
}

#[test]
fn a_partial_checkpoint_has_the_present_files_and_the_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("m-2"), &["a", "other"]);
    write(&folder.path().join("m-4"), &["other", "b"]);
    index(
        folder.path(),
        &[("gone", "m-1"), ("a", "m-2"), ("lost", "m-2"), ("gone, too", "m-3"), ("b", "m-4")],
    );
    let list = CheckpointPath::Path(folder.path().into()).locate(None, Strictness::Strict, &|_| Ok(()));
    let list = list.expect("located");
    let found =
        Checkpoint::open(list, RequestedMode::Auto, Strictness::Strict, Assembly::Partial, &mut || true);
    let checkpoint = found.expect("opened");
    let problem = checkpoint.problem.as_deref().expect("a problem");
    assert!(problem.contains("2 files are missing") && problem.contains("\"lost\""), "{problem}");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(["a", "b"].map(|name| byte(&checkpoint, name)), [0, 1]);
    assert_eq!(checkpoint.paths, ["m-2", "m-4"].map(|name| folder.path().join(name)));
    checkpoint.check().expect("unchanged");
}

#[test]
fn files_that_are_apart_follow_their_index() {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("m-1"), &["pad", "a"]);
    write(&folder.path().join("m-2"), &["a", "b"]);
    index(folder.path(), &[("pad", "m-1"), ("a", "m-1"), ("b", "m-2")]);
    let list = CheckpointPath::Path(folder.path().into()).locate(None, Strictness::Strict, &|_| Ok(()));
    let list = list.expect("located");
    let found =
        Checkpoint::open(list, RequestedMode::Auto, Strictness::Strict, Assembly::Apart, &mut || true);
    let checkpoint = found.expect("opened");
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["pad", "a", "b"]);
}

#[test]
fn the_error_names_a_few_of_many_problems_and_their_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<_> = (0..40).map(|number| format!("m-{number}")).collect();
    index(folder.path(), &names.iter().map(|name| (&**name, &**name)).collect::<Vec<_>>());
    let message = refusal(open(folder.path()));
    assert!(message.contains("40 files are missing: ") && message.contains("m-4, ...;"), "{message}");
    assert!(!message.contains("m-5"), "{message}");
}

#[test]
fn the_index_decides_or_without_strictness_the_last_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let files: Vec<PathBuf> = ["m-1", "m-2"].map(|name| folder.path().join(name)).into();
    write(&files[0], &["pad", "twice"]);
    write(&files[1], &["twice"]);
    let lenient = |source| open_with(source, Strictness::Upstream).expect("opened");
    let checkpoint = lenient(CheckpointPath::Files(files.clone()));
    assert_eq!(byte(&checkpoint, "twice"), 0);
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["pad", "twice"]);
    assert!(checkpoint.warnings[0].contains("the last file decides"));
    assert!(
        refusal(open_with(CheckpointPath::Files(files), Strictness::Strict)).contains("more than one file")
    );
    index(folder.path(), &[("twice", "m-1"), ("missing", "m-2")]);
    let checkpoint = lenient(CheckpointPath::Path(folder.path().into()));
    assert_eq!(byte(&checkpoint, "twice"), 1);
    assert_eq!(checkpoint.len(), 1);
    assert_eq!(checkpoint.warnings.len(), 3, "{:?}", checkpoint.warnings);
    index(folder.path(), &[("twice", "m-1"), ("pad", "m-1")]);
    let strict = open(folder.path()).expect("opened");
    assert_eq!(byte(&strict, "twice"), 1);
    write(&folder.path().join("m-2"), &["twice", "other"]);
    index(folder.path(), &[("twice", "m-1"), ("pad", "m-1"), ("other", "m-2")]);
    let strict = open(folder.path()).expect("opened");
    assert_eq!(strict.names().collect::<Vec<_>>(), ["pad", "twice", "other"]);
    assert_eq!([byte(&strict, "twice"), byte(&strict, "other")], [1, 1]);
    let [warning] = &*strict.warnings else { panic!("{:?}", strict.warnings) };
    assert!(warning.starts_with("1 tensor has a second copy: \"twice\" (in "), "{warning}");
    assert!(warning.ends_with("m-1); the index decides"), "{warning}");
}

#[test]
fn a_missing_file_named_by_the_caller_keeps_its_error() {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("a"), &["a"]);
    let files = ["a", "missing"].map(|name| folder.path().join(name)).into();
    let error = open_with(CheckpointPath::Files(files), Strictness::Strict).expect_err("missing");
    assert!(matches!(error, Error::System { ref path, .. } if path.ends_with("missing")), "{error}");
    assert!(matches!(
        open_with(CheckpointPath::Files(Vec::new()), Strictness::Strict),
        Err(Error::Argument { .. })
    ));
}

#[test]
fn a_descriptor_becomes_a_file_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a");
    write(&path, &["a"]);
    let handle = std::fs::File::open(&path).expect("opened");
    std::fs::remove_file(&path).expect("removed");
    let open = |of: &std::fs::File, mode| {
        use std::os::fd::AsRawFd;
        MappedFile::from_descriptor(of.as_raw_fd(), Path::new("the name"), mode)
    };
    for mode in [RequestedMode::Shared, RequestedMode::Private, RequestedMode::Read] {
        let file = open(&handle, mode).expect("opened");
        assert_eq!(file.path(), Path::new("the name"));
        assert_eq!(file.opened().and_then(|opened| opened.read(8, 2)).expect("read"), b"{\"");
        file.close();
    }
    assert!(handle.metadata().is_ok(), "the caller's descriptor stays open");
    let folder = std::fs::File::open(folder.path()).expect("opened");
    assert!(open(&folder, RequestedMode::Auto).is_err());
}

#[test]
fn opening_stops_after_many_missing_files_and_counts_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<_> = (0..5000).map(|number| (format!("{number}"), format!("f{number}"))).collect();
    let pairs: Vec<_> = names.iter().map(|(name, file)| (name.as_str(), file.as_str())).collect();
    index(folder.path(), &pairs);
    let text = refusal(open(folder.path()));
    let count = |words: &str| {
        let before = &text[..text.find(words).unwrap_or_else(|| panic!("{text}"))];
        before.rsplit(' ').next().expect("a word").parse::<usize>().expect("a number")
    };
    let (missing, skipped) = (count(" files are missing"), count(" more were not tried"));
    assert_eq!(missing + skipped, 5000);
    assert!((100..300).contains(&missing), "{text}");
}

#[test]
fn opening_stops_when_the_caller_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<_> = (0..300).map(|number| folder.path().join(format!("{number}.safetensors"))).collect();
    for path in &paths {
        write(path, &[path.file_name().and_then(|name| name.to_str()).expect("text")]);
    }
    let mut asked = 0;
    let mut stop = || {
        asked += 1;
        false
    };
    let list = CheckpointPath::Files(paths).locate(None, Strictness::Strict, &|_| Ok(())).expect("located");
    let found = Checkpoint::open(list, RequestedMode::Auto, Strictness::Strict, Assembly::Whole, &mut stop);
    assert!(matches!(found, Err(Error::Argument { .. })));
    assert_eq!(asked, 1);
}
