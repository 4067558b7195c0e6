//! Rules between the entries: names are unique, and tensors cover the file's data without a gap or an overlap.

use super::error::{HeaderError, HeaderErrorKind, quoted, shape_text};
use super::names::NameOrder;
use super::table::{HEADER, HeaderTable, Pair, Record, Text};
use crate::allocate::{self, OutOfMemory};
use crate::dtype::SizeError;
use crate::weights::strictness::Strictness;

/// Returns the records in order of their names. The format forbids duplicate keys; upstream lets the last one win.
pub(super) fn unique_names(
    table: &mut HeaderTable,
    strictness: Strictness,
) -> Result<NameOrder, HeaderError> {
    if let Some(pairs) = &mut table.metadata {
        unique(pairs, &table.text, strictness, "`__metadata__`", |pair: &Pair| pair.key)?;
    }
    unique(&mut table.records, &table.text, strictness, "the header", |record: &Record| record.name)
}

fn unique<T>(
    items: &mut Vec<T>,
    text: &str,
    strictness: Strictness,
    place: &str,
    key: impl Fn(&T) -> Text,
) -> Result<NameOrder, HeaderError> {
    let name = |item: &T| &text[key(item).span.range()];
    let order = NameOrder::new(items, name)?;
    let is_repeat = |pair: &&[u32]| name(&items[pair[0] as usize]) == name(&items[pair[1] as usize]);
    let Some(repeat) = order.indices.windows(2).find(is_repeat) else {
        return Ok(order);
    };
    if strictness == Strictness::Strict {
        let (first, second) = (&items[repeat[0] as usize], &items[repeat[1] as usize]);
        return Err(duplicate(name(first), place, key(first), key(second)));
    }
    let mut wins = allocate::filled(true, items.len(), HEADER)?;
    for repeat in order.indices.windows(2).filter(is_repeat) {
        wins[repeat[0] as usize] = false;
    }
    let mut wins = wins.into_iter();
    items.retain(|_| wins.next() == Some(true));
    Ok(NameOrder::new(items, name)?)
}

fn duplicate(name: &str, place: &str, first: Text, second: Text) -> HeaderError {
    let first = first.offset().map_or_else(String::new, |offset| format!(", first at byte {offset}"));
    let detail = format!("duplicate key {} in {place}{first}", quoted(name));
    HeaderError::new(HeaderErrorKind::Duplicate, second.offset(), detail)
}

/// Returns the records' indices in order of their data, empty tensors first, then by name.
pub(super) fn offset_order(table: &HeaderTable) -> Result<Vec<u32>, OutOfMemory> {
    let place = |(index, record): (usize, &Record)| (record.begin, record.end, index as u32);
    let mut order = allocate::collected(table.records.iter().enumerate().map(place), HEADER)?;
    let name = |index: u32| table.name(&table.records[index as usize]);
    order.sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| name(a.2).cmp(name(b.2))));
    allocate::collected(order.iter().map(|&(.., index)| index), HEADER)
}

/// Checks each tensor's place and size, and that the last tensor ends at the end of the file.
pub(super) fn check_layout(
    table: &HeaderTable,
    offset_order: &[u32],
    data_start: u64,
    file_size: u64,
) -> Result<(), HeaderError> {
    let mut expected_begin = 0;
    for &index in offset_order {
        let record = &table.records[index as usize];
        check_offsets(table, record, expected_begin)?;
        check_size(table, record)?;
        expected_begin = record.end;
    }
    check_cover(expected_begin, data_start, file_size)
}

fn check_offsets(table: &HeaderTable, record: &Record, expected_begin: u64) -> Result<(), HeaderError> {
    let Record { begin, end, .. } = *record;
    let found = if begin > end {
        format!("its data_offsets [{begin}, {end}] end before they begin")
    } else if begin > expected_begin {
        let hole = begin - expected_begin;
        format!("its data begin at {begin}, expected {expected_begin}: a hole of {hole} bytes")
    } else if begin < expected_begin {
        let overlap = expected_begin - begin;
        format!("its data begin at {begin}, expected {expected_begin}: an overlap of {overlap} bytes")
    } else {
        return Ok(());
    };
    let detail = format!("invalid offset for tensor {}: {found}", quoted(table.name(record)));
    Err(HeaderError::new(HeaderErrorKind::InvalidOffsets, record.name.offset(), detail))
}

fn check_size(table: &HeaderTable, record: &Record) -> Result<(), HeaderError> {
    let (begin, end, shape) = (record.begin, record.end, table.shape(record));
    let held = end - begin;
    let computed = record.dtype.array_bytes(shape);
    if computed == Ok(held) {
        return Ok(());
    }
    let name = quoted(table.name(record));
    let array = format!("{} of shape {}", record.dtype, shape_text(shape));
    let (kind, detail) = match computed {
        Ok(bytes) => (
            HeaderErrorKind::InvalidSize,
            format!(
                "invalid shape, data type, or offset for tensor {name}: {array} takes {bytes} bytes, \
                 its data_offsets [{begin}, {end}] hold {held}"
            ),
        ),
        Err(SizeError::Overflow) => (
            HeaderErrorKind::Overflow,
            format!(
                "overflow computing buffer size from shape and/or element type of tensor {name}: {array}"
            ),
        ),
        Err(SizeError::Unaligned) => {
            (HeaderErrorKind::SubByte, format!("tensor {name}: {array} does not end up at a byte boundary"))
        }
    };
    Err(HeaderError::new(kind, record.name.offset(), detail))
}

/// Checks the end in 128 bits, because the tensors may claim nearly 2^64 bytes.
fn check_cover(data_end: u64, data_start: u64, file_size: u64) -> Result<(), HeaderError> {
    let (found, expected) = (u128::from(file_size), u128::from(data_start) + u128::from(data_end));
    let difference = match found.cmp(&expected) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => format!("short by {}", expected - found),
        std::cmp::Ordering::Greater => format!("{} extra", found - expected),
    };
    let detail = format!(
        "incomplete metadata, file not fully covered: the tensors end at byte {expected}, \
         the file has {found} bytes ({difference})"
    );
    Err(HeaderError::new(HeaderErrorKind::IncompleteCover, Some(expected.min(found) as u64), detail))
}
