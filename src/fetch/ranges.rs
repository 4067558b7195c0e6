//! Ranges of bytes, and the only rule for joining neighbours.

/// A file of a reader. The reader decides what the numbers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FileId {
    pub set: usize,
    pub index: usize,
}

/// A contiguous range of bytes in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    pub file: FileId,
    pub offset: u64,
    pub len: u64,
}

impl ByteRange {
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Splits the range into parts of at most `max_bytes`.
    pub fn pieces(self, max_bytes: u64) -> impl Iterator<Item = Self> {
        let starts = (self.offset..self.end()).step_by(max_bytes.max(1) as usize);
        starts.map(move |offset| Self { offset, len: (self.end() - offset).min(max_bytes), ..self })
    }
}

/// Decides whether two neighbours are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeRule {
    /// Smaller gaps are read and discarded. Neighbours that touch or overlap have no gap.
    pub gap_bytes: u64,
    /// Maximum length of a joined range.
    pub max_bytes: u64,
}

impl MergeRule {
    /// Joins only ranges that touch or overlap.
    pub const TOUCHING: Self = Self { gap_bytes: 0, max_bytes: u64::MAX };

    /// Returns the range that covers both, if the rule joins them. `next` must not begin before `kept`.
    pub fn join(self, kept: ByteRange, next: ByteRange) -> Option<ByteRange> {
        let gap = next.offset.saturating_sub(kept.end());
        let len = kept.end().max(next.end()).checked_sub(kept.offset)?;
        let is_near = gap == 0 || gap < self.gap_bytes;
        (kept.file == next.file && is_near && len <= self.max_bytes).then_some(ByteRange { len, ..kept })
    }
}

/// An item that is read from a range of a file.
pub trait Ranged {
    fn range(&self) -> ByteRange;
}

impl Ranged for ByteRange {
    fn range(&self) -> ByteRange {
        *self
    }
}

/// A read, and the parts that it serves.
#[derive(Debug)]
pub struct MergedRange<T> {
    pub range: ByteRange,
    pub first: T,
    /// Parts joined to the first one.
    pub others: Vec<T>,
}

/// Joins parts that are sorted by file and offset. Lazy: it holds one part back.
#[derive(Debug, Clone)]
pub struct Merge<I: Iterator> {
    parts: I,
    pending: Option<I::Item>,
    rule: MergeRule,
}

impl<I: Iterator<Item: Ranged>> Merge<I> {
    pub fn new(parts: I, rule: MergeRule) -> Self {
        Self { parts, pending: None, rule }
    }
}

impl<I: Iterator<Item: Ranged>> Iterator for Merge<I> {
    type Item = MergedRange<I::Item>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.pending.take().or_else(|| self.parts.next())?;
        let (mut range, mut others) = (first.range(), Vec::new());
        for part in self.parts.by_ref() {
            let Some(joined) = self.rule.join(range, part.range()) else {
                self.pending = Some(part);
                break;
            };
            range = joined;
            others.push(part);
        }
        Some(MergedRange { range, first, others })
    }
}
