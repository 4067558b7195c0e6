//! [`Next`]: what a consumer gets from threads that work ahead of it.

/// The answer to a consumer that asks for the next result, and waits for a limited time.
#[derive(Debug)]
pub enum Next<T> {
    Ready(T),
    /// No result follows.
    End,
    /// No result within the time given.
    NotYet,
}

impl<T> Next<T> {
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Next<U> {
        match self {
            Self::Ready(result) => Next::Ready(make(result)),
            Self::End => Next::End,
            Self::NotYet => Next::NotYet,
        }
    }
}
