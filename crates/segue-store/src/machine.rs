//! Which machine this is, as leases and calls name it.

/// This machine's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The id of the boot of this machine; empty where the system has none.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or(String::new(), |id| id.trim().to_owned())
}
