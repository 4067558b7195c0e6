//! Files for tests.

use std::io::Write;
use std::sync::Arc;

use super::gate::ReadGate;
use super::{MappedFile, Opened, RequestedMode};

/// Returns an open file of this content, which has no name any more.
pub fn opened(content: &[u8], mode: RequestedMode) -> Arc<Opened> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(content).expect("written");
    MappedFile::open(file.path(), mode).and_then(|file| file.opened()).expect("open")
}

/// Likewise, with a gate that holds its reads.
pub fn gated(content: &[u8], mode: RequestedMode) -> (Arc<Opened>, Arc<ReadGate>) {
    let (opened, gate) = (opened(content, mode), Arc::new(ReadGate::default()));
    opened.gate.set(gate.clone()).expect("one gate");
    (opened, gate)
}
