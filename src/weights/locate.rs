//! Finds the files of a checkpoint from a file, a folder, an index or a list of files.
//!
//! ```text
//! a file, a list                    -> those files
//! an index (.json)                  -> the files that it names
//! a folder -- with an index         -> as that index
//!          -- model.safetensors     -> that file
//!          -- else                  -> all its *.safetensors, in natural order
//! ```
//!
//! Links in the caller's own paths may lead anywhere. A name from an index or a folder's listing must lead to a file
//! beneath the folder ([`Folder`]), beneath a blob folder of the Hugging Face cache, or beneath one more folder that
//! the caller allows.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mapped_file::{
    Beside, Folder, Identity, MappedFile, NOT_FOUND, Origin, RequestedMode, is_directory, is_gone, is_refusal,
};

use super::index::{Index, MAX_INDEX_BYTES};
use super::mistaken;
use super::strictness::Strictness;
use super::tally::Tally;
use crate::natural;

const WEIGHTS: &[u8] = b".safetensors";
const INDEX: &[u8] = b".safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const USUAL_INDEX: &str = "model.safetensors.index.json";

/// A checkpoint as the caller specifies it.
#[derive(Debug)]
pub enum CheckpointPath {
    Path(PathBuf),
    Files(Vec<PathBuf>),
}

/// The next access while the files of a checkpoint are located.
#[derive(Debug, Clone, Copy)]
pub enum AccessRequest<'a> {
    List(&'a Path),
    Open(&'a Path),
}

/// A check before each access. An error prevents the access.
pub type AccessGate<'a> = dyn Fn(AccessRequest<'_>) -> Result<()> + Sync + 'a;

/// A file to open.
#[derive(Debug, Clone)]
pub struct ShardPath {
    /// The path in messages and in results.
    pub path: PathBuf,
    pub origin: Origin,
}

impl ShardPath {
    /// Returns whether an error of this file is the checkpoint's fault. A missing file at the caller's own path is not.
    pub fn is_to_blame(&self, error: &Error) -> bool {
        match error {
            Error::Safetensors { .. } => true,
            Error::System { errno, .. } => {
                matches!(self.origin, Origin::Beneath(..)) && (is_gone(*errno) || is_refusal(*errno))
            }
            _ => false,
        }
    }
}

/// The files of a checkpoint, and its index.
#[derive(Debug)]
pub struct ShardList {
    /// The path from the caller.
    pub path: PathBuf,
    pub shards: Vec<ShardPath>,
    pub index: Option<IndexFile>,
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub struct IndexFile {
    pub index: Index,
    pub path: PathBuf,
    pub identity: Identity,
}

impl CheckpointPath {
    /// Finds the files, and reads the index if there is one. Links may also lead into `cache_root`.
    pub fn locate(
        self,
        cache_root: Option<&Path>,
        strictness: Strictness,
        gate: &AccessGate<'_>,
    ) -> Result<ShardList> {
        match self {
            Self::Files(paths) => files_as_named(paths, cache_root),
            Self::Path(path) if is_directory(&path) => {
                gate(AccessRequest::List(&path))?;
                in_directory(path, cache_root, strictness, gate)
            }
            Self::Path(path) if is_index(&path) => {
                let (folder, name) = split(&path);
                gate(AccessRequest::List(folder))?;
                let folder = open_folder(folder, cache_root)?;
                // Only a warning needs the listing, so a folder that cannot be listed is not an error.
                let weights = folder.names().map(|names| with_suffix(&names, WEIGHTS)).unwrap_or_default();
                let index = read_index(&folder, name, strictness, gate)?;
                Ok(named_by_index(path, &folder, index, &weights))
            }
            Self::Path(path) => files_as_named(vec![path], cache_root),
        }
    }
}

fn named_by_index(path: PathBuf, folder: &Arc<Folder>, found: IndexFile, weights: &[OsString]) -> ShardList {
    let named: Vec<_> = found.index.shards().iter().map(OsStr::new).collect();
    let shards = named.iter().map(|name| beneath(folder, name)).collect();
    let named: HashSet<_> = named.into_iter().collect();
    let others = weights.iter().filter(|file| !named.contains(file.as_os_str()));
    let warnings = warning_of_others(others, "the index").into_iter().collect();
    ShardList { path, shards, index: Some(found), warnings }
}

/// Turns a file's error into an error of the checkpoint, because the name comes from the index and not from the caller.
pub fn blame_checkpoint(error: Error) -> Error {
    match error {
        Error::System { errno, ref path, .. } if is_refusal(errno) => {
            Error::Safetensors { path: path.clone(), detail: error.message() }
        }
        other => other,
    }
}

fn read_index(
    folder: &Arc<Folder>,
    name: &OsStr,
    strictness: Strictness,
    gate: &AccessGate<'_>,
) -> Result<IndexFile> {
    gate(AccessRequest::Open(&folder.path.given.join(name)))?;
    let file =
        MappedFile::open_beneath(folder, Path::new(name), RequestedMode::Read).map_err(blame_checkpoint)?;
    let path = file.path().to_owned();
    let wrong = |detail: String| Error::Safetensors { path: path.clone(), detail };
    let opened = file.opened()?;
    if opened.size() > MAX_INDEX_BYTES {
        return Err(wrong(format!(
            "index too large: found {} bytes, expected at most {MAX_INDEX_BYTES}",
            opened.size()
        )));
    }
    let json = opened.read(0, opened.size())?;
    let index = Index::parse(&json, strictness).map_err(|error| match error {
        Error::Safetensors { detail, .. } => {
            let hint = mistaken::named(&path, &json, opened.size()).filter(|_| !json.starts_with(b"{"));
            let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
            wrong(format!("invalid index: {detail}{hint}"))
        }
        other => other,
    })?;
    Ok(IndexFile { index, identity: opened.facts.identity, path })
}

fn files_as_named(paths: Vec<PathBuf>, cache_root: Option<&Path>) -> Result<ShardList> {
    let Some(first) = paths.first().cloned() else {
        return Err(Error::argument("no files were given; expected at least one safetensors file"));
    };
    let shards = match cache_root {
        None => paths.into_iter().map(|path| ShardPath { origin: Origin::of(&path), path }).collect(),
        Some(_) => confined(&paths, cache_root)?,
    };
    // Errors about several files name each of them, so the list as a whole has no path.
    let path = if shards.len() == 1 { first } else { PathBuf::new() };
    Ok(ShardList { path, shards, index: None, warnings: Vec::new() })
}

fn confined(paths: &[PathBuf], cache_root: Option<&Path>) -> Result<Vec<ShardPath>> {
    let mut folders: HashMap<&Path, Arc<Folder>> = HashMap::new();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let (parent, name) = split(path);
        let folder = match folders.get(parent) {
            Some(known) => known.clone(),
            None => folders.entry(parent).or_insert(open_folder(parent, cache_root)?).clone(),
        };
        files.push(beneath(&folder, name));
    }
    Ok(files)
}

fn in_directory(
    path: PathBuf,
    cache_root: Option<&Path>,
    strictness: Strictness,
    gate: &AccessGate<'_>,
) -> Result<ShardList> {
    let folder = open_folder(&path, cache_root)?;
    let names = folder.names()?;
    let (indices, weights) = (with_suffix(&names, INDEX), with_suffix(&names, WEIGHTS));
    let usual = indices.iter().find(|name| *name == USUAL_INDEX);
    if let Some(index) = usual.or(indices.first()) {
        let shown = shown(indices.iter());
        if indices.len() > 1 && usual.is_none() {
            let detail = format!(
                "this folder has {} indexes: {shown}; expected one, or one that is called {USUAL_INDEX}; \
                 give the path of the index that is meant",
                indices.len()
            );
            return Err(Error::Safetensors { path, detail });
        }
        let found = read_index(&folder, index, strictness, gate)?;
        let mut list = named_by_index(path, &folder, found, &weights);
        if indices.len() > 1 {
            list.warnings.insert(0, format!("of the folder's indexes ({shown}) {USUAL_INDEX} is used"));
        }
        return Ok(list);
    }
    let single = weights.iter().any(|name| name == SINGLE);
    let (used, others): (Vec<_>, Vec<_>) = weights.iter().partition(|name| !single || *name == SINGLE);
    if used.is_empty() {
        return Err(nothing_in(path, &names));
    }
    let shards = used.into_iter().map(|name| beneath(&folder, name)).collect();
    let warnings = warning_of_others(others.into_iter(), SINGLE).into_iter().collect();
    Ok(ShardList { path, shards, index: None, warnings })
}

fn nothing_in(path: PathBuf, names: &[OsString]) -> Error {
    let mut sorted: Vec<_> = names.iter().collect();
    sorted.sort();
    let found = if names.is_empty() { "no files at all".into() } else { shown(sorted.into_iter()) };
    let advice = if names.iter().any(|name| name == "snapshots") {
        "give one of the folders in its folder \"snapshots\""
    } else if names.iter().any(|name| mistaken::is_named_like_tokens(Path::new(name))) {
        "open token files with open_tokens"
    } else {
        "open_checkpoint also takes a list of files"
    };
    let advice = format!("found {found}; expected names that end in .safetensors; {advice}");
    Error::system("no checkpoint in this folder", path, NOT_FOUND, advice)
}

fn open_folder(path: &Path, cache_root: Option<&Path>) -> Result<Arc<Folder>> {
    let also: Vec<_> = cache_root.map(Path::to_owned).into_iter().collect();
    Folder::open(path, &also, hugging_face_blobs).map(Arc::new)
}

/// Returns the targets of the links in a snapshot of the Hugging Face cache: `REPO/snapshots/REVISION/...` has links to
/// `REPO/blobs`, whose entries may be links to the shared `blobs` of the whole cache, which contains a marker file. No
/// other folders are allowed, because unrelated folders may also be named `snapshots` and `blobs`.
///
/// Source: `huggingface_hub`, `file_download.py` and `utils/_shared_blobs.py`.
fn hugging_face_blobs(folder: &Path) -> Vec<Beside> {
    let is_snapshots = |path: &Path| {
        let repository = path.parent().and_then(Path::file_name);
        path.file_name() == Some(OsStr::new("snapshots")) && repository.is_some_and(is_repository)
    };
    let Some(snapshots) = folder.ancestors().skip(1).position(is_snapshots) else { return Vec::new() };
    // `position` counts from the parent, which is one level up.
    let repository = snapshots + 2;
    let blobs = |levels_up, marker| Beside { levels_up, name: "blobs".into(), marker };
    vec![blobs(repository, None), blobs(repository + 1, Some(".huggingface-shared-blobs".into()))]
}

/// Returns whether `huggingface_hub` gives a repository's folder such a name, for example `models--org--name`.
fn is_repository(name: &OsStr) -> bool {
    let kinds: [&[u8]; 3] = [b"models--", b"datasets--", b"spaces--"];
    kinds.iter().any(|kind| name.as_bytes().strip_prefix(*kind).is_some_and(|rest| !rest.is_empty()))
}

fn beneath(folder: &Arc<Folder>, name: &OsStr) -> ShardPath {
    ShardPath { path: folder.path.given.join(name), origin: Origin::Beneath(folder.clone(), name.into()) }
}

/// Splits a path into folder and name. A path without a name of its own (`..`) becomes its own folder, and is rejected
/// later.
fn split(path: &Path) -> (&Path, &OsStr) {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => (parent, name),
        _ => (path, OsStr::new(".")),
    }
}

/// Returns whether a path has the name of an index.
fn is_index(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b".json")
}

/// Returns the names with a suffix, in natural order, without hidden files.
fn with_suffix(names: &[OsString], suffix: &[u8]) -> Vec<OsString> {
    let bytes = |name: &OsString| name.as_bytes().to_owned();
    let matches = |name: &&OsString| bytes(name).ends_with(suffix) && !bytes(name).starts_with(b".");
    let mut found: Vec<_> = names.iter().filter(matches).cloned().collect();
    found.sort_by(|a, b| natural::compare(a.as_bytes(), b.as_bytes()));
    found
}

fn shown<'n>(names: impl Iterator<Item = &'n OsString>) -> String {
    names.map(|name| name.display()).collect::<Tally>().names()
}

fn warning_of_others<'n>(names: impl Iterator<Item = &'n OsString>, used: &str) -> Option<String> {
    let tally: Tally = names.map(|name| name.display()).collect();
    let text = tally.text("file of the folder is not used", "files of the folder are not used")?;
    Some(format!("beside {used} {text}"))
}
