//! Reads manifests as kubectl reads them.
//!
//! kubectl turns YAML into JSON by the rules of YAML 1.1: a bare `on`, `off`, `yes`, `no`, `y` or `n` is a boolean. What
//! is read here therefore has the faults that the API server would see. `tests/live_manifests.rs` compares with kubectl.

use serde_json::Value;

/// A text that is no YAML, or a document that can't be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("not valid YAML: {0}")]
pub struct ManifestError(String);

/// All documents of a YAML (or JSON) text; empty documents are left out.
pub fn read(text: &str) -> Result<Vec<Value>, ManifestError> {
    // A number that begins with 0 is octal, as in `defaultMode: 0644`.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let mut documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| ManifestError(error.to_string()))?;
    documents.retain(|document| !document.is_null());
    documents.iter_mut().for_each(make_whole);
    Ok(documents)
}

/// `2.0` and `1e3` are sent as `2` and `1000`.
fn make_whole(value: &mut Value) {
    match value {
        Value::Object(object) => object.values_mut().for_each(make_whole),
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Number(number) if number.is_f64() => {
            // Rust writes a float without an exponent, and a whole one without a fraction.
            if let Some(whole) = number.as_f64().and_then(|float| float.to_string().parse::<i64>().ok()) {
                *value = Value::from(whole);
            }
        }
        _ => {}
    }
}

/// One document as YAML.
pub fn write(document: &Value) -> Result<String, ManifestError> {
    serde_saphyr::to_string(document).map_err(|error| ManifestError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bare_words_of_yaml_1_1_are_booleans_and_quoted_ones_are_not() {
        let text = "a: Off\nb: \"Off\"\nc: yes\nd: y\ne: No\nf: 'on'\ng: 0.5\nh: ~\ni: 1\n";
        let wanted = json!({
            "a": false, "b": "Off", "c": true, "d": true, "e": false, "f": "on", "g": 0.5, "h": null, "i": 1,
        });
        assert_eq!(read(text).unwrap(), [wanted]);
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let text = "a: 2.0\nb: 1e3\nc: 0644\nd: 0x10\ne: 1.5\nf: 1e300\n";
        let wanted = json!({"a": 2, "b": 1000, "c": 420, "d": 16, "e": 1.5, "f": 1e300});
        assert_eq!(read(text).unwrap(), [wanted]);
    }

    #[test]
    fn every_document_is_read_and_empty_ones_are_left_out() {
        assert_eq!(read("---\n---\na: 1\n---\nb: 2\n").unwrap(), [json!({"a": 1}), json!({"b": 2})]);
    }

    #[test]
    fn what_is_no_yaml_says_where() {
        let error = read("a: [1\nb: 2").unwrap_err().to_string();
        assert!(error.contains("line"), "{error}");
    }
}
