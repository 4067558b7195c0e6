//! [`Strictness`]: whether to reject files that only upstream's code accepts.

/// The treatment of files that the format forbids and upstream's code accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strictness {
    /// Rejects them: duplicate keys, `null` metadata, NUL in names, serde's other spellings.
    #[default]
    Strict,
    /// Accepts all files that version 0.8 of the `safetensors` crate accepts.
    Upstream,
}

impl From<bool> for Strictness {
    fn from(strict: bool) -> Self {
        if strict { Self::Strict } else { Self::Upstream }
    }
}
