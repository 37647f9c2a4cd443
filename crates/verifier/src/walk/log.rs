//! The log of a walk: its first and its last lines, since a walk may have a million steps.

/// Lines of text, up to a limit: half of them from the beginning, half from the end.
#[derive(Debug, Default)]
pub(crate) struct Log {
    first: Vec<String>,
    /// A ring: the next line replaces the one at `at`.
    last: Vec<String>,
    at: usize,
    left_out: u64,
    /// Bytes of all texts that were kept at some time.
    bytes: usize,
}

impl Log {
    /// Adds a line; at most `limit` are kept.
    pub(crate) fn push(&mut self, limit: usize, line: String) {
        let half = limit / 2;
        let held = line.capacity();
        if self.first.len() < limit - half {
            self.first.push(line);
            self.bytes += held;
        } else if self.last.len() < half {
            self.last.push(line);
            self.bytes += held;
        } else {
            self.left_out += 1;
            if half > 0 {
                self.bytes = self.bytes + held - self.last[self.at].capacity();
                self.last[self.at] = line;
                self.at = (self.at + 1) % half;
            }
        }
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + (self.first.capacity() + self.last.capacity()) * size_of::<String>()
    }

    /// All lines that were kept, and one that says how many were not.
    pub(crate) fn take(&mut self) -> Vec<String> {
        let log = std::mem::take(self);
        let (mut lines, mut last) = (log.first, log.last);
        last.rotate_left(log.at);
        if log.left_out > 0 {
            lines.push(format!("({} lines left out: Limits::log_lines, --log-lines)", log.left_out));
        }
        lines.append(&mut last);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_lines_stay() {
        for limit in 0..12 {
            for count in 0..40 {
                let mut log = Log::default();
                (0..count).for_each(|i| log.push(limit, i.to_string()));
                let lines = log.take();
                let numbers: Vec<usize> = lines.iter().filter_map(|l| l.parse().ok()).collect();
                assert_eq!(numbers.len(), limit.min(count));
                assert!(numbers.is_sorted(), "{numbers:?}");
                assert_eq!(lines.len() > numbers.len(), count > limit);
                assert!(limit < 2 || count == 0 || numbers.last() == Some(&(count - 1)));
            }
        }
    }
}
