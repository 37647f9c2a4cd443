//! Time on a shared machine.
//!
//! CLOCK_THREAD_CPUTIME_ID does not run while another process has the core, but frequency and caches still vary over
//! seconds. So each contender runs for about a millisecond at a time, in turn, for many rounds, and the median of its
//! rounds counts: whatever slows the machine slows all contenders alike.

use std::time::Duration;

/// Rounds of a measurement: enough for a steady median, odd so that it is one of them.
pub const ROUNDS: usize = 41;
/// What one contender runs for in one round.
pub const SLICE: Duration = Duration::from_millis(1);

/// CPU time of this thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusive place for the one timespec that the call writes.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "this clock exists on every Linux");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of one of `repeat` runs of `work`, which runs that often.
pub fn nanoseconds(repeat: u32, work: impl FnOnce(u32)) -> f64 {
    let start = thread_time();
    work(repeat);
    (thread_time() - start).as_nanos() as f64 / f64::from(repeat)
}

/// A contender: runs its work this many times, and answers the nanoseconds of one.
pub type Contender<'a> = Box<dyn FnMut(u32) -> f64 + 'a>;

/// Median nanoseconds of one run for each contender, measured in interleaved rounds.
pub fn interleaved(contenders: &mut [Contender<'_>]) -> Vec<f64> {
    let repeats: Vec<u32> = contenders.iter_mut().map(calibrate).collect();
    let mut rounds = vec![Vec::with_capacity(ROUNDS); contenders.len()];
    // In another order each round: who runs after whom shows, by some percent (what the one before left in caches, and
    // the clock it left the core at).
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut random = 1u64;
    for _ in 0..ROUNDS {
        for last in (1..order.len()).rev() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            order.swap(last, (random >> 33) as usize % (last + 1));
        }
        for &i in &order {
            rounds[i].push(contenders[i](repeats[i]));
        }
    }
    rounds.into_iter().map(median).collect()
}

/// How often to run in a round.
///
/// The first runs pay for page faults and cold caches. A count made from them would be too small, and then every round
/// of that contender would begin cold and be over before it is warm. So they do not count.
fn calibrate(contender: &mut Contender<'_>) -> u32 {
    const WARM_UP: u32 = 3;
    for _ in 0..WARM_UP {
        contender(1);
    }
    let mut repeat = 1;
    loop {
        let total = contender(repeat) * f64::from(repeat);
        if total >= SLICE.as_nanos() as f64 / 2.0 || repeat >= 1 << 20 {
            let fit = f64::from(repeat) * SLICE.as_nanos() as f64 / total.max(1.0);
            return (fit as u32).clamp(1, 1 << 20);
        }
        repeat *= 4;
    }
}

/// The middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The geometric mean.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / f64::from(count)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!((geometric_mean([1.0, 4.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_slow_first_run_does_not_shorten_the_rounds() {
        // A millisecond at first, then a microsecond.
        let mut times = [1e6].into_iter().chain(std::iter::repeat(1e3));
        assert!((900..=1000).contains(&calibrate(&mut (Box::new(move |_| times.next().unwrap()) as Contender<'_>))));
        assert_eq!(calibrate(&mut (Box::new(|_| 0.0) as Contender<'_>)), 1 << 20);
    }

    #[test]
    fn twice_the_work_takes_longer() {
        let spin = |n: u64| {
            move |repeat: u32| {
                nanoseconds(repeat, |repeat| {
                    for _ in 0..repeat {
                        std::hint::black_box((0..n).fold(0u64, |a, b| std::hint::black_box(a ^ b)));
                    }
                })
            }
        };
        let times = interleaved(&mut [Box::new(spin(1_000)), Box::new(spin(10_000))]);
        assert!(times[1] > 3.0 * times[0], "{times:?}");
    }
}
