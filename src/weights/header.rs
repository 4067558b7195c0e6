//! The safetensors header.
