//! Times as the API server takes them.

use jiff::Timestamp;

/// `metav1.Time`, for statuses and records: RFC 3339 in whole seconds, UTC.
pub fn whole_seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`, for Leases and events: RFC 3339 with exactly six fraction digits; no other number of them is
/// taken.
pub fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_micro_time_has_exactly_six_fraction_digits() {
        for (nanos, wanted) in
            [(0, "1970-01-01T00:00:00.000000Z"), (1_500_000_123, "1970-01-01T00:00:01.500000Z")]
        {
            assert_eq!(micro_time(Timestamp::from_nanosecond(nanos).unwrap()), wanted);
        }
    }
}
