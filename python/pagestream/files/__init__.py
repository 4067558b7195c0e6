"""Files and anonymous memory: `MappedFile`, `StagingBuffer`."""
