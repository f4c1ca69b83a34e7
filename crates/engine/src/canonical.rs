//! Canonical JSON and its hash: the same value always gives the same bytes.
//!
//! RFC 8785 (JSON Canonicalization Scheme), restricted to integers that every JSON reader keeps
//! exactly. It knows nothing of what the value means. The audit chain ([`crate::audit`]) and the
//! hash of an apply's intent (`api::children`) are both built on it, so its output may never
//! change: a different byte would roll every Deployment and break every chain.

use std::fmt::{self, Write as _};

use serde_json::{Map, Number, Value};
use sha2::{Digest as _, Sha256};

/// The largest integer that an IEEE 754 double holds exactly together with its neighbours, 2^53 - 1
/// (RFC 7493 section 2.2). Larger ones change in readers that know only doubles.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// A value that has no canonical form here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanonicalError {
    /// Where the number stands: a JSON pointer (RFC 6901), empty for the value itself.
    pub pointer: String,
    /// The number as JSON text.
    pub number: String,
    /// What is wrong with it.
    pub kind: CanonicalErrorKind,
}

/// What keeps a number from having a canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanonicalErrorKind {
    /// It was written with a fraction or an exponent, or as `-0`.
    NotAnInteger,
    /// It lies outside ±[`MAX_SAFE_INTEGER`].
    TooLarge,
}

impl fmt::Display for CanonicalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "the value" } else { &self.pointer };
        match self.kind {
            CanonicalErrorKind::NotAnInteger => {
                write!(f, "{place}: {} is not an integer; write it as a string", self.number)
            }
            CanonicalErrorKind::TooLarge => {
                write!(f, "{place}: {} is beyond ±(2^53 - 1); write it as a string", self.number)
            }
        }
    }
}

impl std::error::Error for CanonicalError {}

/// The canonical text of a value: no blanks, keys sorted by UTF-16 code units (RFC 8785 section 3.2.3),
/// strings escaped as in section 3.2.2.2.
pub fn to_canonical_json(value: &Value) -> Result<String, CanonicalError> {
    let mut writer = Writer { out: String::new(), path: Vec::new() };
    writer.value(value)?;
    Ok(writer.out)
}

/// SHA-256 as 64 lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// [`sha256_hex`] of the canonical text.
pub fn hash(value: &Value) -> Result<String, CanonicalError> {
    to_canonical_json(value).map(|text| sha256_hex(text.as_bytes()))
}

/// Bytes that a character takes inside a JSON string, its escape included.
pub(crate) const fn escaped_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

struct Writer<'a> {
    out: String,
    /// Reference tokens of the value being written, for the error's pointer.
    path: Vec<Token<'a>>,
}

#[derive(Clone, Copy)]
enum Token<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Writer<'a> {
    fn value(&mut self, value: &'a Value) -> Result<(), CanonicalError> {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(true) => self.out.push_str("true"),
            Value::Bool(false) => self.out.push_str("false"),
            Value::Number(number) => self.number(number)?,
            Value::String(text) => self.string(text),
            Value::Array(items) => self.array(items)?,
            Value::Object(fields) => self.object(fields)?,
        }
        Ok(())
    }

    fn array(&mut self, items: &'a [Value]) -> Result<(), CanonicalError> {
        self.out.push('[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.path.push(Token::Index(index));
            self.value(item)?;
            self.path.pop();
        }
        self.out.push(']');
        Ok(())
    }

    fn object(&mut self, fields: &'a Map<String, Value>) -> Result<(), CanonicalError> {
        let mut sorted: Vec<(&'a String, &'a Value)> = fields.iter().collect();
        // Not the order of `str`, which is by code point: U+E000..U+FFFF sort after surrogate pairs here.
        sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        self.out.push('{');
        for (index, (key, value)) in sorted.into_iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.string(key);
            self.out.push(':');
            self.path.push(Token::Key(key));
            self.value(value)?;
            self.path.pop();
        }
        self.out.push('}');
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\u{8}' => self.out.push_str("\\b"),
                '\t' => self.out.push_str("\\t"),
                '\n' => self.out.push_str("\\n"),
                '\u{c}' => self.out.push_str("\\f"),
                '\r' => self.out.push_str("\\r"),
                '\0'..='\u{1f}' => {
                    // Writing to a String cannot fail.
                    let _ = write!(self.out, "\\u{:04x}", u32::from(c));
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn number(&mut self, number: &Number) -> Result<(), CanonicalError> {
        let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
        let kind = match magnitude {
            Some(magnitude) if magnitude <= MAX_SAFE_INTEGER => {
                self.out.push_str(&number.to_string());
                return Ok(());
            }
            Some(_) => CanonicalErrorKind::TooLarge,
            None => CanonicalErrorKind::NotAnInteger,
        };
        Err(CanonicalError { pointer: self.pointer(), number: number.to_string(), kind })
    }

    fn pointer(&self) -> String {
        self.path.iter().fold(String::new(), |mut pointer, token| {
            pointer.push('/');
            match token {
                Token::Key(key) => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
                Token::Index(index) => pointer.push_str(&index.to_string()),
            }
            pointer
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(value: &Value) -> String {
        to_canonical_json(value).unwrap()
    }

    #[test]
    fn the_rfc_sorting_example_sorts_by_utf16_code_units() {
        // RFC 8785 section 3.2.3.
        let value = json!({
            "\u{20ac}": "Euro Sign",
            "\r": "Carriage Return",
            "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
            "1": "One",
            "\u{1f600}": "Emoji: Grinning Face",
            "\u{80}": "Control",
            "\u{f6}": "Latin Small Letter O With Diaeresis",
        });
        let wanted = "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\
            \"\u{f6}\":\"Latin Small Letter O With Diaeresis\",\"\u{20ac}\":\"Euro Sign\",\
            \"\u{1f600}\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}";
        assert_eq!(text(&value), wanted);
    }

    #[test]
    fn the_rfc_string_example_is_escaped_as_the_rfc_says() {
        // RFC 8785 section 3.2.2.2, the value of "string".
        let value = json!("\u{20ac}$\u{f}\nA'B\"\\\\\"/");
        assert_eq!(text(&value), "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"");
        assert_eq!(
            text(&json!("\u{8}\t\n\u{c}\r\u{1f}\u{7f}\u{2028}")),
            "\"\\b\\t\\n\\f\\r\\u001f\u{7f}\u{2028}\""
        );
    }

    #[test]
    fn literals_and_nested_values_have_no_blanks() {
        let value = json!({"b": [null, true, false, -1, 0, {}], "a": []});
        assert_eq!(text(&value), r#"{"a":[],"b":[null,true,false,-1,0,{}]}"#);
    }

    #[test]
    fn a_fraction_is_refused_with_its_place() {
        let error = to_canonical_json(&json!({"a/b": [0, {"~": 0.5}]})).unwrap_err();
        assert_eq!(error.pointer, "/a~1b/1/~0");
        assert_eq!(error.kind, CanonicalErrorKind::NotAnInteger);
        assert_eq!(error.to_string(), "/a~1b/1/~0: 0.5 is not an integer; write it as a string");
        assert_eq!(to_canonical_json(&json!(1.0)).unwrap_err().pointer, "");
    }

    #[test]
    fn integers_are_kept_up_to_two_to_the_53_minus_one_and_refused_beyond() {
        assert_eq!(text(&json!(9_007_199_254_740_991_i64)), "9007199254740991");
        assert_eq!(text(&json!(-9_007_199_254_740_991_i64)), "-9007199254740991");
        for beyond in [json!(1_u64 << 53), json!(-(1_i64 << 53)), json!(u64::MAX), json!(i64::MIN)] {
            assert_eq!(to_canonical_json(&beyond).unwrap_err().kind, CanonicalErrorKind::TooLarge);
        }
    }

    #[test]
    fn the_hash_is_the_published_sha256_of_the_text() {
        // FIPS 180-4 example "abc" and the empty message.
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(sha256_hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash(&json!({"b": 1, "a": 2})).unwrap(), sha256_hex(br#"{"a":2,"b":1}"#));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_text_reads_back_as_the_same_value_and_is_a_fixed_point(value in value()) {
            let once = text(&value);
            let read: Value = serde_json::from_str(&once).unwrap();
            prop_assert_eq!(&read, &value);
            prop_assert_eq!(text(&read), once);
        }

        #[test]
        fn the_order_of_insertion_does_not_show(fields in prop::collection::btree_map(any::<String>(), any::<bool>(), 0..8)) {
            let forward: Map<String, Value> = fields.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let backward: Map<String, Value> = fields.iter().rev().map(|(k, v)| (k.clone(), json!(v))).collect();
            prop_assert_eq!(text(&Value::Object(forward)), text(&Value::Object(backward)));
        }

        #[test]
        fn escaped_len_is_what_the_writer_and_serde_write(c in any::<char>()) {
            let written = text(&json!(c.to_string()));
            prop_assert_eq!(written.len(), escaped_len(c) + 2);
            prop_assert_eq!(written, serde_json::to_string(&c).unwrap());
        }
    }
}
