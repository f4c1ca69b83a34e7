//! What is wrong with a manifest, and where.
//!
//! [`Violation`] is what the parser finds, [`Warning`] what it only remarks on. Both carry the field path in the
//! notation of the API server (`spec.scaling.metrics[0].target`), so that an answer of ours and one of the server can
//! be compared.

use std::fmt;

use serde::Serialize;

/// Kind of a fault, in the vocabulary of `metav1.CauseType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum FaultKind {
    /// The value is not allowed here.
    #[serde(rename = "FieldValueInvalid")]
    Invalid,
    /// A value is missing.
    #[serde(rename = "FieldValueRequired")]
    Required,
    /// The value stands twice in a list that is keyed by it.
    #[serde(rename = "FieldValueDuplicate")]
    Duplicate,
    /// The field belongs to somebody else, or is refused for safety.
    #[serde(rename = "FieldValueForbidden")]
    Forbidden,
    /// The value is none of the listed ones.
    #[serde(rename = "FieldValueNotSupported")]
    NotSupported,
    /// The value has another type than the field.
    #[serde(rename = "FieldValueTypeInvalid")]
    TypeInvalid,
    /// The field doesn't exist.
    #[serde(rename = "UnknownField")]
    Unknown,
}

/// One fault of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// Path of the field, such as `spec.scaling.metrics[0].target`.
    pub path: String,
    /// Kind of the fault.
    pub kind: FaultKind,
    /// What is wrong and what to do.
    pub message: String,
}

impl Violation {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, kind: FaultKind, message: impl Into<String>) -> Self {
        Self { path: path.into(), kind, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A remark on a manifest that is accepted all the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Warning {
    /// Path of the field.
    pub path: String,
    /// What to know about it.
    pub message: String,
}

impl Warning {
    /// A remark at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// All faults in one line, for a condition's message: numbered where there are several, at most `limit` of them, and how
/// many more there are.
pub fn summarize(violations: &[Violation], limit: usize) -> String {
    if let [only] = violations {
        return only.to_string();
    }
    let told = violations.iter().take(limit).enumerate();
    let mut text = format!("{} faults: ", violations.len());
    text.push_str(
        &told.map(|(n, violation)| format!("({}) {violation}", n + 1)).collect::<Vec<_>>().join("; "),
    );
    if violations.len() > limit {
        text.push_str(&format!("; and {} more", violations.len() - limit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_faults_are_numbered_and_the_rest_is_counted() {
        let fault = |path: &str| Violation::new(path, FaultKind::Invalid, "no; never");
        assert_eq!(summarize(&[fault("a")], 2), "a: no; never");
        assert_eq!(
            summarize(&[fault("a"), fault("b"), fault("c")], 2),
            "3 faults: (1) a: no; never; (2) b: no; never; and 1 more"
        );
    }
}
