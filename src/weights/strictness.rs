//! [`Strictness`]: whether files that only upstream's code accepts are refused.

/// What to do with files that the format disallows and upstream's code accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strictness {
    /// Refuses them: duplicate keys, `null` metadata, NUL in names, serde's other spellings.
    #[default]
    Strict,
    /// Accepts what version 0.8 of the `safetensors` crate accepts.
    Upstream,
}

impl From<bool> for Strictness {
    fn from(strict: bool) -> Self {
        if strict { Self::Strict } else { Self::Upstream }
    }
}
