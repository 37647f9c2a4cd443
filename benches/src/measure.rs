//! Measuring time on a shared machine.
//!
//! CLOCK_THREAD_CPUTIME_ID does not advance while another process has the core, but the frequency and the caches
//! still vary over seconds. Contenders therefore run in turn, about a millisecond at a time, for many rounds, and the
//! figure of each is the median of its rounds: other load slows all contenders alike.

use std::time::Duration;

/// Number of rounds of a measurement: enough for a steady median, and odd so that the median is one of them.
pub const ROUNDS: usize = 41;
/// Time for which one contender runs in one round.
pub const SLICE: Duration = Duration::from_millis(1);

/// Returns the CPU time of this thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusive place for the one timespec that the call writes.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "this clock exists on every Linux");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns nanoseconds of one run; `work` is called with `repeat` and runs that many times.
pub fn nanoseconds(repeat: u32, work: impl FnOnce(u32)) -> f64 {
    let start = thread_time();
    work(repeat);
    (thread_time() - start).as_nanos() as f64 / f64::from(repeat)
}

/// A contender: runs its work as many times as it is told, and returns the nanoseconds of one.
pub type Contender<'a> = Box<dyn FnMut(u32) -> f64 + 'a>;

/// Returns the median nanoseconds of one run for each contender, measured in interleaved rounds.
pub fn interleaved(contenders: &mut [Contender<'_>]) -> Vec<f64> {
    rounds(contenders).into_iter().map(median).collect()
}

/// Least nanoseconds of one run for each contender, measured in interleaved rounds: for machines that do other work.
pub fn interleaved_least(contenders: &mut [Contender<'_>]) -> Vec<f64> {
    rounds(contenders).into_iter().map(|all| all.into_iter().fold(f64::INFINITY, f64::min)).collect()
}

/// Nanoseconds of one run, by contender and round.
fn rounds(contenders: &mut [Contender<'_>]) -> Vec<Vec<f64>> {
    let repeats: Vec<u32> = contenders.iter_mut().map(calibrate).collect();
    let mut rounds = vec![Vec::with_capacity(ROUNDS); contenders.len()];
    // Each round has another order: a contender's predecessor affects it by some percent, by the contents of the
    // caches and the clock frequency that it leaves.
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
    rounds
}

/// Returns the number of runs of a contender in a round.
///
/// The first runs are not counted. They include page faults and cold caches: a number computed from them would be too
/// small, and every round of that contender would begin cold and end before it is warm.
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

/// Returns the middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the geometric mean.
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
        // A millisecond at first, then a microsecond each.
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
