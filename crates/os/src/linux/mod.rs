//! Linux. Calls that Miri does not know return "not here".

pub mod barrier;
pub mod event;
pub mod file;
pub mod memory;
pub mod process;
pub mod thread;
pub mod time;
pub mod wait;

use crate::{Call, SysError};

/// The calling thread's last error, as an error of this call.
fn failed(call: Call) -> SysError {
    SysError { call, errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}
