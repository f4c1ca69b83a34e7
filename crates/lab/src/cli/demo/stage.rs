//! How the demo speaks: chapters, what is done, and claims with the answer of the API server.
//!
//! Colour only on a terminal that wants it, never alone in meaning, and of the sixteen colours only those that read on
//! dark and on light. Knows nothing of Kubernetes.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};

/// Lines are wrapped here: readable in any terminal and in a CI log.
const WIDTH: usize = 78;

pub(super) struct Stage {
    colour: bool,
    begun: Instant,
    chapters: u32,
    claims: u32,
}

/// A claim that does not hold.
#[derive(Debug)]
pub(super) struct Failed;

impl Stage {
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let colour = wanted && able && std::io::stdout().is_terminal();
        Self { colour, begun: Instant::now(), chapters: 0, claims: 0 }
    }

    pub(super) fn title(&self, text: &str) {
        self.line(&self.paint(Style::new().bold(), text));
    }

    pub(super) fn chapter(&mut self, text: &str) {
        self.chapters += 1;
        let number = self.chapters;
        self.line("");
        self.line(&self.paint(Style::new().bold(), &format!("{number}. {text}")));
    }

    /// What is going on, as prose.
    pub(super) fn say(&self, text: &str) {
        for line in wrap(text, WIDTH - 3) {
            self.line(&format!("   {line}"));
        }
    }

    /// A command that is run.
    pub(super) fn command(&self, text: &str) {
        self.line(&format!("   {}", self.paint(AnsiColor::Blue.on_default(), &format!("$ {text}"))));
    }

    /// What a command printed.
    pub(super) fn output(&self, text: &str) {
        for line in text.lines() {
            self.line(&format!("   | {}", line.trim_end()));
        }
    }

    /// A claim and whether it holds; `detail` is a figure to show.
    pub(super) fn holds(&mut self, claim: &str, detail: Option<&str>) {
        self.claims += 1;
        let ok = self.paint(AnsiColor::Green.on_default().bold(), "ok");
        let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
        let mut lines = wrap(&format!("{claim}{detail}"), WIDTH - 6).into_iter();
        self.line(&format!("   {ok} {}", lines.next().unwrap_or_default()));
        for line in lines {
            self.line(&format!("      {line}"));
        }
    }

    /// A claim that doesn't hold: what was expected, and what was seen.
    pub(super) fn fails(&self, claim: &str, expected: &str, seen: &str) -> Failed {
        let mark = self.paint(AnsiColor::Red.on_default().bold(), "FAILED");
        self.line(&format!("   {mark} {claim}"));
        self.line(&format!("      expected: {expected}"));
        self.line(&format!("      seen:     {seen}"));
        Failed
    }

    pub(super) fn end(&self) {
        self.line("");
        let text = format!("All {} claims hold ({} s).", self.claims, self.begun.elapsed().as_secs());
        self.line(&self.paint(Style::new().bold(), &text));
    }

    #[allow(clippy::unused_self, reason = "the stage is who speaks")]
    pub(super) fn line(&self, text: &str) {
        // A closed pipe is no error: nobody reads any more.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    fn paint(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// A time for people: milliseconds with one digit below ten, seconds above a second.
pub(super) fn time(took: Duration) -> String {
    let millis = took.as_secs_f64() * 1000.0;
    if millis < 10.0 {
        format!("{millis:.1} ms")
    } else if millis < 1000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.1} s", millis / 1000.0)
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        assert_eq!(time(Duration::from_micros(3_240)), "3.2 ms");
        assert_eq!(time(Duration::from_millis(340)), "340 ms");
        assert_eq!(time(Duration::from_millis(2_500)), "2.5 s");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("extraordinarily long", 5), ["extraordinarily", "long"]);
    }
}
