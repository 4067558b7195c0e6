//! A copy that survives unreadable pages.
//!
//! The routines are written in assembly, so that the SIGBUS handler knows two things about each of their instructions:
//! where to continue, and which register holds the number of remaining bytes. Kernels use exception tables for this
//! purpose, and HotSpot uses `UnsafeCopyMemoryMark` (<https://bugs.openjdk.org/browse/JDK-8191278>). The technique
//! costs nothing as long as nothing faults.

use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
global_asm!(include_str!("copy_x86_64.s"));
#[cfg(target_arch = "aarch64")]
global_asm!(include_str!("copy_aarch64.s"));

type Routine = unsafe extern "C" fn(*mut u8, *const u8, usize) -> usize;

unsafe extern "C" {
    fn pagestream_copy_plain(destination: *mut u8, source: *const u8, length: usize) -> usize;
    static pagestream_copy_start: u8;
    static pagestream_copy_end: u8;
    static pagestream_copy_landing: u8;
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn pagestream_copy_avx(destination: *mut u8, source: *const u8, length: usize) -> usize;
    static pagestream_copy_avx_start: u8;
    static pagestream_copy_avx_end: u8;
    static pagestream_copy_avx_landing: u8;
}

/// Minimum length for `pagestream_copy_avx`.
#[cfg(target_arch = "x86_64")]
const AVX_MIN_BYTES: usize = 128;

/// Copies `length` bytes and returns the number of bytes at the end that were *not* copied: 0, or at least 1 after a
/// fault. All bytes before them are good.
///
/// # Safety
/// * `destination` is valid for writes of `length` bytes, and not inside `source`.
/// * `source` is an address range that stays mapped during the call. Its pages may be unreadable (beyond the end of the
///   file, failed I/O) only if [`super::install_and_check`] has returned `true` in this thread.
pub unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) -> usize {
    debug_assert!(!destination.is_null() || length == 0);
    // SAFETY: the caller keeps the routine's requirements, and `routine` checks the minimum length.
    unsafe { routine(length)(destination, source, length) }
}

#[cfg(target_arch = "x86_64")]
fn routine(length: usize) -> Routine {
    // The answer is cached by std.
    if length >= AVX_MIN_BYTES && std::arch::is_x86_feature_detected!("avx2") {
        pagestream_copy_avx
    } else {
        pagestream_copy_plain
    }
}

#[cfg(target_arch = "aarch64")]
fn routine(_length: usize) -> Routine {
    pagestream_copy_plain
}

/// Returns the landing of a fault at the instruction `pc`, if `pc` lies in one of the routines.
pub(super) fn landing(pc: usize) -> Option<usize> {
    let plain = [
        &raw const pagestream_copy_start,
        &raw const pagestream_copy_end,
        &raw const pagestream_copy_landing,
    ];
    #[cfg(target_arch = "x86_64")]
    let routines = [
        plain,
        [
            &raw const pagestream_copy_avx_start,
            &raw const pagestream_copy_avx_end,
            &raw const pagestream_copy_avx_landing,
        ],
    ];
    #[cfg(target_arch = "aarch64")]
    let routines = [plain];
    routines
        .into_iter()
        .find(|[start, end, _]| (start.addr()..end.addr()).contains(&pc))
        .map(|[_, _, landing]| landing.addr())
}
