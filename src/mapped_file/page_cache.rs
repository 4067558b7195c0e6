//! The page cache of an open file: hints, residency, warming, evicting, locking.

use std::sync::PoisonError;

use crate::error::{Error, Result};
use crate::os::errno::Code;
use crate::os::fault;
use crate::os::memory::advise::{self, Advice};
use crate::os::memory::residency::{self, Residency};
use crate::os::memory::{Uninit, map::Region, page_bytes};
use crate::os::process::{fork, limits};
use crate::words::words;

use super::{MappedFile, Mode, Opened};

/// Bytes that are asked for ahead and read at a time while warming.
const WARM_CHUNK_BYTES: u64 = 8 << 20;

/// The kernel reads no more than its read-ahead window, or the device's largest request, for one
/// `MADV_WILLNEED` (`force_page_cache_ra` in mm/readahead.c); this much is read everywhere.
const AHEAD_CHUNK_BYTES: u64 = 128 << 10;

/// What was asked for the whole file, to be asked again of a larger mapping.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Hints {
    advice: Option<Advice>,
    locked: bool,
}

/// Called with the bytes done so far; `false` stops.
pub type Progress<'a> = dyn FnMut(u64) -> bool + 'a;

impl MappedFile {
    /// Hands advice to the kernel. `false` where it was not taken: advice is never an error.
    pub fn advise(&self, advice: Advice, offset: u64, length: u64) -> Result<bool> {
        let opened = self.opened()?;
        opened.check_range(offset, length)?;
        let lasting =
            matches!(advice, Advice::Normal | Advice::Random | Advice::Sequential | Advice::HugePage);
        if lasting && (offset, length) == (0, opened.size()) {
            self.with_hints(|care| care.advice = Some(advice));
            if opened.region.is_none() {
                opened.descriptor_advice.ask(advice);
            }
        }
        Ok(opened.advise(advice, offset, length))
    }

    pub fn residency(&self, offset: u64, length: u64, seed: u64) -> Result<Residency> {
        let opened = self.opened()?;
        opened.check_range(offset, length)?;
        let region = opened.region.as_deref();
        let found = residency::residency(opened.file(), region, offset, length, seed);
        // Sampling turns read-ahead of the descriptor off and on.
        if let (Some(advice), None) = (self.with_hints(|care| care.advice), region) {
            opened.advise(advice, 0, opened.size());
        }
        Ok(found)
    }

    /// After the file grew: what was asked of the old mapping holds for the new one.
    pub(super) fn reapply_hints(&self, opened: &Opened) -> Result<()> {
        let care = self.with_hints(|care| *care);
        if let Some(advice) = care.advice {
            opened.advise(advice, 0, opened.size());
        }
        match &opened.region {
            Some(region) if care.locked => opened.lock(region),
            _ => Ok(()),
        }
    }

    /// A child of a fork must not inherit the lock from a thread that it has not.
    fn with_hints<T>(&self, act: impl FnOnce(&mut Hints) -> T) -> T {
        let _section = fork::section();
        act(&mut self.care.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads a range so that it is in the page cache.
    pub fn warm(&self, offset: u64, length: u64, progress: &mut Progress<'_>) -> Result<()> {
        let opened = self.opened()?;
        opened.check_range(offset, length)?;
        let mut scratch = Vec::with_capacity(WARM_CHUNK_BYTES.min(length) as usize);
        let mut done = 0;
        while done < length {
            let chunk = WARM_CHUNK_BYTES.min(length - done);
            let ahead = WARM_CHUNK_BYTES.min(length - done - chunk);
            // Best effort: without it the chunks are still read, one after another.
            self.advise(Advice::WillNeed, offset + done + chunk, ahead)?;
            opened.warm_chunk(offset + done, chunk, &mut scratch)?;
            done += chunk;
            if !progress(done) {
                break;
            }
        }
        Ok(())
    }

    /// Drops the file's clean pages from the page cache, and from this process's mapping. Dirty ones
    /// are written out first. Pages that another process maps stay.
    pub fn evict(&self) -> Result<()> {
        let opened = self.opened()?;
        advise::write_out(opened.file());
        if let Some(region) = &opened.region {
            let _ = advise::advise_map(region, 0, region.len(), Advice::DontNeed);
        }
        advise::drop_cache(opened.file()).map_err(|errno| opened.system("cannot evict", errno, String::new()))
    }

    /// mlock(2): reads the file into memory and keeps it there.
    pub fn lock(&self) -> Result<()> {
        self.with_region("lock", Opened::lock)?;
        self.with_hints(|care| care.locked = true);
        Ok(())
    }

    pub fn unlock(&self) -> Result<()> {
        self.with_hints(|care| care.locked = false);
        self.with_region("unlock", |opened, region| {
            region.unlock().map_err(|errno| opened.system("cannot unlock the mapping", errno, String::new()))
        })
    }

    fn with_region(&self, verb: &str, act: impl FnOnce(&Opened, &Region) -> Result<()>) -> Result<()> {
        let opened = self.opened()?;
        match &opened.region {
            Some(region) => act(&opened, region),
            None if opened.facts.mode == Mode::Read => {
                Err(Error::argument(format!("nothing to {verb}: in \"read\" mode the file is not mapped")))
            }
            None => Ok(()),
        }
    }
}

words! {
    /// What a reader drops from memory once it is used.
    pub enum DropBehind as "drop_behind" {
        /// Pages leave this process's resident set; the page cache keeps them.
        Resident = "resident",
        /// Pages leave the page cache, too, unless another process maps them.
        Cache = "cache",
    }
}

/// Which pages of a range are in the page cache.
#[derive(Debug)]
pub struct ResidentPages {
    page_bytes: u64,
    first: u64,
    pages: Vec<bool>,
}

impl ResidentPages {
    /// Whether all pages of a range inside of that which was asked for are.
    pub fn contain(&self, offset: u64, length: u64) -> bool {
        let start = (offset / self.page_bytes).saturating_sub(self.first);
        let stop = (offset + length).div_ceil(self.page_bytes).saturating_sub(self.first);
        self.pages.get(start as usize..stop as usize).is_some_and(|pages| pages.iter().all(|&cached| cached))
    }
}

impl Opened {
    /// Asks for a range ahead of its use, without waiting for it. `false` where the kernel would not.
    pub fn fetch_ahead(&self, offset: u64, length: u64) -> bool {
        let mut done = 0;
        while done < length {
            let chunk = AHEAD_CHUNK_BYTES.min(length - done);
            if !self.advise(Advice::WillNeed, offset + done, chunk) {
                return false;
            }
            done += chunk;
        }
        true
    }

    /// Whether a range is wholly in the page cache; `None` where that cannot be known cheaply.
    pub fn is_resident(&self, offset: u64, length: u64) -> Option<bool> {
        let region = self.region.as_ref()?;
        let told = *fork::get_or_make(&self.residency_is_told, || residency::kernel_tells_truth(self.file()));
        if told { residency::is_resident(region, offset as usize, length as usize) } else { None }
    }

    /// Which pages of a range are in the page cache; `None` where that cannot be known cheaply.
    pub fn resident_pages(&self, offset: u64, length: u64) -> Option<ResidentPages> {
        let region = self.region.as_ref()?;
        let told = *fork::get_or_make(&self.residency_is_told, || residency::kernel_tells_truth(self.file()));
        let page_bytes = page_bytes() as u64;
        let first = offset / page_bytes;
        let count = offset.checked_add(length)?.div_ceil(page_bytes).checked_sub(first)?;
        let pages =
            if told { residency::mincore(region, first as usize, count as usize)? } else { return None };
        Some(ResidentPages { page_bytes, first, pages })
    }

    /// Best effort: a page that another process maps stays in the cache.
    pub fn drop_behind(&self, offset: u64, length: u64, what: DropBehind) {
        if let Some(region) = &self.region {
            let _ = advise::advise_map(region, offset as usize, length as usize, Advice::DontNeed);
        }
        if what == DropBehind::Cache {
            let _ = advise::drop_cached_range(self.file(), offset, length);
        }
    }

    fn advise(&self, advice: Advice, offset: u64, length: u64) -> bool {
        match &self.region {
            Some(region) => advise::advise_map(region, offset as usize, length as usize, advice).is_ok(),
            None => advise::advise_file(self.file(), offset, length, advice).is_ok(),
        }
    }

    fn lock(&self, region: &Region) -> Result<()> {
        region.lock().map_err(|errno| {
            let advice = match errno {
                Code::PERM | Code::NOMEM | Code::AGAIN => limits::explain_memlock(),
                _ => String::new(),
            };
            self.system("cannot lock the mapping in memory", errno, advice)
        })
    }

    fn system(&self, operation: &'static str, errno: Code, advice: String) -> Error {
        Error::System { operation, path: self.path.clone(), errno: errno.raw_os_error(), advice }
    }

    /// By pread, which leaves the resident set alone; but a private mapping may stand on a
    /// mount where pread goes past the cache (FUSE `direct_io`), so its pages are touched.
    fn warm_chunk(&self, offset: u64, length: u64, scratch: &mut Vec<u8>) -> Result<()> {
        match &self.region {
            Some(region) if self.facts.mode == Mode::Private && fault::install_and_check() => {
                let (start, len) = (offset as usize, length as usize);
                // Where a page fails, pread gets it after all or tells why not.
                region
                    .touch(start, len)
                    .or_else(|failed| self.pread_into(failed as u64, Uninit::of(&mut [0])))?;
                // Out of the resident set again; the cache keeps the pages.
                let _ = advise::advise_map(region, start, len, Advice::DontNeed);
                Ok(())
            }
            _ => self.pread_into(offset, Uninit::spare(&mut scratch.spare_capacity_mut()[..length as usize])),
        }
    }
}
