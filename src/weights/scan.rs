//! The tokens of JSON as programs write it: strings without escapes, plain whole numbers. A scanner that meets
//! anything else gives `None`, and a JSON parser begins anew, which also has the words for what is wrong.

/// A number of no more digits is below 2^64.
const MOST_DIGITS: usize = 19;

pub(super) struct Scanner<'j> {
    json: &'j str,
    at: usize,
}

impl<'j> Scanner<'j> {
    pub fn new(json: &'j str) -> Self {
        Self { json, at: 0 }
    }

    /// In bytes from the start.
    pub fn position(&self) -> usize {
        self.at
    }

    /// What stands between there and here.
    pub fn since(&self, start: usize) -> &'j str {
        &self.json[start..self.at]
    }

    /// Nothing more but white space.
    pub fn end(mut self) -> Option<()> {
        self.skip_space();
        (self.at == self.json.len()).then_some(())
    }

    fn next(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    pub fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.next() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub fn expect(&mut self, byte: u8) -> Option<()> {
        self.take(byte).then_some(())
    }

    /// What stands between commas, up to `end`.
    pub fn list(&mut self, end: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if self.take(end) {
            return Some(());
        }
        loop {
            item(self)?;
            if !self.take(b',') {
                return self.expect(end);
            }
        }
    }

    /// A string without escapes and control characters.
    pub fn string(&mut self) -> Option<&'j str> {
        self.expect(b'"')?;
        let rest = &self.json[self.at..];
        let len = end_of_string(rest.as_bytes())?;
        self.at += len + 1;
        Some(&rest[..len])
    }

    /// The name comes with its quotes.
    pub fn field(&mut self, name: &str) -> Option<()> {
        self.skip_space();
        if !self.json.as_bytes()[self.at..].starts_with(name.as_bytes()) {
            return None;
        }
        self.at += name.len();
        self.expect(b':')
    }

    pub fn number(&mut self) -> Option<u64> {
        self.skip_space();
        let rest = &self.json.as_bytes()[self.at..];
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let has_leading_zero = digits > 1 && rest[0] == b'0';
        if digits == 0 || digits > MOST_DIGITS || has_leading_zero {
            return None;
        }
        self.at += digits;
        // Of so many digits it cannot overflow.
        Some(rest[..digits].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
    }
}

/// How many bytes come before the closing quote; `None` if a backslash or a control character does. Eight at a time:
/// names are most of a header.
fn end_of_string(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    const HIGH_BITS: u64 = ONES << 7;
    // Where the lowest byte of a word that is smaller than `limit` (at most 128) is, there is the lowest bit.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH_BITS;
    let ends = |word: u64| {
        let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        equal(b'"') | equal(b'\\') | below(word, b' ')
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let whole = words.iter().map(|word| ends(u64::from_le_bytes(*word))).position(|found| found != 0);
    let at = match whole {
        Some(number) => number * 8 + ends(u64::from_le_bytes(words[number])).trailing_zeros() as usize / 8,
        None => words.len() * 8 + rest.iter().position(|&byte| matches!(byte, b'"' | b'\\' | ..b' '))?,
    };
    (bytes[at] == b'"').then_some(at)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What JSON is made of, and what it is not.
    const ALPHABET: &str = "{}[]\",:\\ \n\t0123456789-+.eEutnrlasf\u{1f}\u{7f}\u{e9}\u{1f642}";

    /// A few characters put in, taken out or replaced.
    pub fn edited(text: String) -> impl Strategy<Value = String> {
        let alphabet: Vec<char> = ALPHABET.chars().collect();
        let edit = (any::<prop::sample::Index>(), 0..3_u8, prop::sample::select(alphabet));
        prop::collection::vec(edit, 0..4).prop_map(move |edits| {
            let mut characters: Vec<char> = text.chars().collect();
            for (place, kind, character) in edits {
                let at = place.index(characters.len().max(1));
                match kind {
                    0 => characters.insert(at.min(characters.len()), character),
                    _ if characters.is_empty() => {}
                    1 => drop(characters.remove(at)),
                    _ => characters[at] = character,
                }
            }
            characters.into_iter().collect()
        })
    }

    #[test]
    fn a_string_ends_where_a_plain_loop_finds_its_end() {
        let naive = |bytes: &[u8]| {
            let at = bytes.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < b' ')?;
            (bytes[at] == b'"').then_some(at)
        };
        for length in 0..20 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    // What comes after must not matter, and what comes before is of every kind.
                    for fill in [b'a', b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
                        let mut bytes = vec![fill; length];
                        bytes[at] = byte;
                        bytes.extend(*b"\"\\\0");
                        assert_eq!(end_of_string(&bytes), naive(&bytes), "{bytes:?}");
                    }
                }
            }
        }
        assert_eq!(end_of_string(b"no end, and longer than a word"), None);
    }

    #[test]
    fn numbers_are_plain_and_fit() {
        let number = |text: &str| Scanner::new(&format!("{text},")).number();
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("9999999999999999999"), Some(9_999_999_999_999_999_999));
        for text in ["", "-1", "01", "00", "18446744073709551615", "x"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
