//! [`FileTensors`]: the tensors of a file, in each order that a program may follow.

use std::collections::HashMap;
use std::ops::Range;

use crate::allocate::{self, OutOfMemory};
use crate::natural::{self, NameKinds};

/// The purpose of memory for these lists.
const TENSORS: &str = "the tensors of a file";

/// The tensors of a file that are not empty. A tensor's number is its position in the file; its place is its position
/// in one of the orders.
#[derive(Debug)]
pub struct FileTensors {
    /// Offset in the file and length of each tensor.
    pub ranges: Vec<(u64, u64)>,
    names: Vec<NameKinds>,
    /// Approximate number of tensors in a layer.
    pub layer_tensors: usize,
    orders: Vec<TensorOrder>,
}

/// An order of the tensors, and the place of each tensor in it.
#[derive(Debug)]
struct TensorOrder {
    numbers: Vec<u32>,
    places: Vec<u32>,
}

impl TensorOrder {
    fn new(numbers: Vec<u32>) -> Result<Self, OutOfMemory> {
        let mut places = allocate::filled(0, numbers.len(), TENSORS)?;
        for (place, &number) in numbers.iter().enumerate() {
            places[number as usize] = place as u32;
        }
        Ok(Self { numbers, places })
    }
}

impl FileTensors {
    /// Makes the list from names and ranges, in file order. A program may also request tensors in the order of their
    /// names, compared either byte by byte or with runs of digits as numbers.
    pub fn of(tensors: &[(&[u8], (u64, u64))]) -> Result<Self, OutOfMemory> {
        let name_of = |number: &u32| tensors[*number as usize].0;
        let mut by_name = allocate::collected(0..tensors.len() as u32, TENSORS)?;
        by_name.sort_unstable_by_key(name_of);
        let mut by_number = allocate::collected(by_name.iter().copied(), TENSORS)?;
        by_number.sort_unstable_by(|one, other| {
            natural::compare(name_of(one), name_of(other)).then_with(|| name_of(one).cmp(name_of(other)))
        });
        let names = tensors.iter().map(|&(name, _)| natural::kinds_of(name));
        let ranges = allocate::collected(tensors.iter().map(|&(_, range)| range), TENSORS)?;
        Self::new(ranges, allocate::collected(names, TENSORS)?, vec![by_name, by_number])
    }

    /// `orders` lists the tensors in the other orders in which a program may request them.
    pub fn new(
        ranges: Vec<(u64, u64)>,
        names: Vec<NameKinds>,
        orders: Vec<Vec<u32>>,
    ) -> Result<Self, OutOfMemory> {
        let by_offset = allocate::collected(0..ranges.len() as u32, TENSORS)?;
        let orders = std::iter::once(by_offset).chain(orders).map(TensorOrder::new);
        let orders = orders.collect::<Result<_, _>>()?;
        let mut members = HashMap::new();
        for name in &names {
            *members.entry(name.series).or_insert(0_usize) += 1;
        }
        let layers = members.into_values().max().unwrap_or(1);
        Ok(Self { layer_tensors: ranges.len().div_ceil(layers), ranges, names, orders })
    }

    pub fn orders(&self) -> Range<usize> {
        0..self.orders.len()
    }

    pub fn number_at(&self, place: usize, order: usize) -> usize {
        self.orders[order].numbers[place] as usize
    }

    pub fn place_of(&self, number: usize, order: usize) -> usize {
        self.orders[order].places[number] as usize
    }

    /// Returns the total length of the tensors at some places of an order.
    pub fn bytes_of(&self, places: Range<usize>, order: usize) -> u64 {
        places.map(|place| self.ranges[self.number_at(place, order)].1).sum()
    }

    /// Returns the kind of a tensor. Tensors of one kind have the same length, so a part of one lies inside each of
    /// them.
    pub fn kind_of(&self, number: usize) -> (u64, u64) {
        (self.names[number].kind, self.ranges[number].1)
    }

    pub fn series_of(&self, number: usize) -> u64 {
        self.names[number].series
    }

    /// Returns the places between two tensors.
    pub fn between(&self, last: usize, number: usize, order: usize) -> Range<usize> {
        self.place_of(last, order) + 1..self.place_of(number, order)
    }
}
