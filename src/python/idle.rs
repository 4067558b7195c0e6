//! Weight files that the program does not use at the moment: closed during their read-ahead, or opened early as the
//! probable next shard.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::lead::FileLead;
use super::next_file::NextFile;
use crate::error::Result;
use crate::leading::idle::{IdleStore, Rest};
use crate::mapped_file::{GivenPath, MappedFile, RequestedMode};
use crate::os::process::credentials::Credentials;
use crate::os::process::fork;
use crate::weights::file::WeightFile;
use crate::weights::header::Header;
use crate::weights::next_shard::next_shard;
use crate::weights::strictness::Strictness;

static FILES: IdleStore<IdleKey, IdleFile> = IdleStore::new();

/// The most recent openings by the program.
static OPENED: Mutex<Vec<OpenedFile>> = Mutex::new(Vec::new());
const MAX_OPENED: usize = 256;
/// If threads of a program open the shards of a checkpoint at the same time, all openings fall within this time.
const SAME_TIME: Duration = Duration::from_secs(1);

/// A file that the program has opened.
#[derive(Debug)]
struct OpenedFile {
    path: PathBuf,
    when: Instant,
    file: Weak<MappedFile>,
    header: Weak<Header>,
    lead: Weak<FileLead>,
}

/// The arguments of an opening.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleKey {
    path: GivenPath,
    mode: RequestedMode,
    strictness: Strictness,
    ahead_bytes: Option<u64>,
    /// A file that was opened with other rights is never handed out.
    credentials: Credentials,
}

/// A file that the program does not use at the moment.
#[derive(Debug)]
struct IdleFile {
    weights: WeightFile,
    lead: Arc<FileLead>,
}

impl Rest for IdleFile {
    fn rest(&self) {
        self.lead.rest();
    }
}

impl Drop for IdleFile {
    fn drop(&mut self) {
        // A new owner holds clones of both.
        if Arc::strong_count(&self.weights.file) == 1 {
            // Close the file first, because the lead continues while views exist.
            self.weights.file.close();
            self.lead.close();
        }
    }
}

impl IdleKey {
    pub fn new(path: &Path, mode: RequestedMode, strictness: Strictness, ahead_bytes: Option<u64>) -> Self {
        let credentials = Credentials::of_this_thread();
        Self { path: GivenPath::new(path), mode, strictness, ahead_bytes, credentials }
    }

    /// Opens the file, or takes it out of the store if it has not changed.
    pub fn open(&self) -> Result<(WeightFile, Arc<FileLead>)> {
        self.note_opened(Weak::new(), Weak::new(), Weak::new());
        let idle = FILES.take(self).filter(|idle| idle.weights.file.is_untouched());
        let (weights, lead) = match idle {
            Some(idle) => (idle.weights.clone(), idle.lead.clone()),
            None => self.with_lead(WeightFile::open(&self.path, self.mode, self.strictness)?),
        };
        lead.set_used(true);
        self.note_opened(
            Arc::downgrade(&weights.file),
            Arc::downgrade(&weights.header),
            Arc::downgrade(&lead),
        );
        Ok((weights, lead))
    }

    /// Records that the program is opening the file, or has opened it.
    fn note_opened(&self, file: Weak<MappedFile>, header: Weak<Header>, lead: Weak<FileLead>) {
        let noted =
            OpenedFile { path: self.path.absolute.to_path_buf(), when: Instant::now(), file, header, lead };
        fork::with_lock(&OPENED, |opened| {
            opened.retain(|other| other.path != noted.path);
            opened.drain(..opened.len().saturating_sub(MAX_OPENED - 1));
            opened.push(noted);
        });
    }

    /// Returns the file and its lead if the program has it open.
    fn in_use(&self) -> Option<(WeightFile, Arc<FileLead>)> {
        let (file, header, lead) = fork::with_lock(&OPENED, |opened| {
            let found = opened.iter().find(|other| *other.path == *self.path.absolute)?;
            Some((found.file.upgrade(), found.header.upgrade(), found.lead.upgrade()))
        })?;
        // Outside the lock, because these may be the last references, and dropping the last one closes the file.
        let weights = WeightFile { file: file?, header: header? };
        let lead = lead?;
        (!weights.file.is_closed()).then_some((weights, lead))
    }

    /// Returns whether the program has opened the file after `since`, or less than [`SAME_TIME`] before it.
    fn was_opened(&self, since: Instant) -> bool {
        fork::with_lock(&OPENED, |opened| {
            opened.iter().any(|other| *other.path == *self.path.absolute && other.when + SAME_TIME >= since)
        })
    }

    fn with_lead(&self, weights: WeightFile) -> (WeightFile, Arc<FileLead>) {
        (weights, Arc::new(FileLead::new(self.ahead_bytes, self.next())))
    }

    fn next(&self) -> Option<NextFile> {
        let next = next_shard(&self.path.absolute)?;
        if next.is_relative() {
            return None; // A thread could resolve it differently.
        }
        let path = self.path.map(|path| path.with_file_name(next.file_name().unwrap_or_default()));
        let key = Self { path, ..self.clone() };
        let (path, before_opened) = (key.path.given.to_path_buf(), Instant::now());
        Some(NextFile::new(path, self.mode, move |handover, is_used| {
            // Announce the file before looking for it. The program records an opening and then looks for announced
            // files, so one of the two sees the other.
            let on_its_way = FILES.announce(key.clone());
            // Some programs open all shards before they use any tensor, for example accelerate.
            if let Some((weights, lead)) = key.in_use() {
                drop(on_its_way);
                return lead.begin(&weights.header, weights.file.opened()?, handover);
            }
            if key.was_opened(before_opened) {
                return Ok(());
            }
            let weights = WeightFile::open_to_read_ahead(&key.path, key.mode, key.strictness)?;
            if !weights.file.tells_states_apart() {
                return Ok(()); // The program will open it again.
            }
            let (header, opened) = (weights.header.clone(), weights.file.opened()?);
            let (weights, lead) = key.with_lead(weights);
            // The program gets this file, unless it has already opened the shard itself.
            if on_its_way.hold(IdleFile { weights, lead: lead.clone() }, is_used.clone()) {
                return lead.begin(&header, opened, handover);
            }
            let Some((weights, lead)) = key.in_use() else { return Ok(()) };
            lead.begin(&weights.header, weights.file.opened()?, handover)
        }))
    }

    /// Closes a file. A file that is being read ahead stays open for a moment, if a later opening can verify that it
    /// has not changed.
    pub fn let_go(&self, weights: &WeightFile, lead: &Arc<FileLead>) {
        if weights.file.is_closed() {
            return; // Another owner may be using it.
        }
        lead.set_used(false);
        if !lead.is_on() || !weights.file.tells_states_apart() {
            weights.file.close();
            lead.close();
        } else if let Some(file) = weights.file.hand_over() {
            let weights = WeightFile { file: Arc::new(file), header: weights.header.clone() };
            FILES.put(self.clone(), IdleFile { weights, lead: lead.clone() });
        }
    }
}
