//! Words that users type. Each list exists once: the macro `words!` turns it into an enum with a parser, the word of
//! each value and an error message. The binding exports the lists to Python.

use crate::error::Error;

/// Declares an enum whose variants have words: `words! { pub enum Color as "color" { Red = "red" } }`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident as $what:literal {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            /// All words, in the order in which messages list them.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Returns the user's word for this value.
            #[allow(dead_code)] // some words only come in
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Returns the value of a word, or an error that lists the words.
            pub fn from_word(word: &str) -> $crate::error::Result<Self> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::words::refusal($what, Self::WORDS, word)),
                }
            }
        }
    };
}
pub(crate) use words;

/// Returns the error for an argument `what` that is not in `words`.
pub(crate) fn refusal(what: &str, words: &[&str], found: &str) -> Error {
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let listed = match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, most)) => format!("{} or {last}", most.join(", ")),
        None => String::new(),
    };
    Error::argument(format!("{what} must be {listed}, not '{found}'"))
}

#[cfg(test)]
mod tests {
    words! {
        enum Color as "color" {
            Red = "red",
            Green = "green",
            Blue = "blue",
        }
    }

    #[test]
    fn words_and_values_are_one_to_one() {
        for word in Color::WORDS {
            assert_eq!(Color::from_word(word).expect("a word").word(), *word);
        }
        assert_eq!(Color::from_word("green").expect("a word"), Color::Green);
        assert_eq!([Color::Red, Color::Blue].map(Color::word), ["red", "blue"]);
    }

    #[test]
    fn an_error_lists_all_words_and_the_given_one() {
        let message = Color::from_word("pink").expect_err("no word").message();
        assert_eq!(message, "color must be \"red\", \"green\" or \"blue\", not 'pink'");
        assert_eq!(super::refusal("x", &["one"], "").message(), "x must be \"one\", not ''");
    }
}
