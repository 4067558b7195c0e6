//! [`FileTensors`]: the tensors of a file, in the orders in which a consumer may ask for them.

use std::collections::HashMap;
use std::ops::Range;

use crate::allocate::{self, OutOfMemory};
use crate::natural::{self, NameKinds};

/// The purpose of memory for these lists.
const TENSORS: &str = "the tensors of a file";

/// The tensors of a file, in order of the data. None is empty.
#[derive(Debug)]
pub struct FileTensors {
    /// Offset in the file and length of each.
    pub ranges: Vec<(u64, u64)>,
    names: Vec<NameKinds>,
    /// About how many tensors a layer has.
    pub layer_tensors: usize,
    orders: Vec<TensorOrder>,
}

/// The tensors in some order, and the place of each in it.
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
    /// The tensors of these names and ranges, in order of the data. They may be asked for in order of the names, too, also
    /// with runs of digits as numbers.
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

    /// `orders` has the tensors in other orders in which they may be asked for.
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

    /// Returns how many bytes the tensors at some places of an order have.
    pub fn bytes_of(&self, places: Range<usize>, order: usize) -> u64 {
        places.map(|place| self.ranges[self.number_at(place, order)].1).sum()
    }

    /// Tensors of the same length alone are of one kind, so that a part of one lies inside each other one.
    pub fn kind_of(&self, number: usize) -> (u64, u64) {
        (self.names[number].kind, self.ranges[number].1)
    }

    pub fn series_of(&self, number: usize) -> u64 {
        self.names[number].series
    }

    /// Returns the places from behind one tensor up to another one.
    pub fn between(&self, last: usize, number: usize, order: usize) -> Range<usize> {
        self.place_of(last, order) + 1..self.place_of(number, order)
    }
}
