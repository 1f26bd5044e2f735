// hwloc's archive can ask libudev for the names of disks, and Debian ships no archive of libudev. Ridge does not care for disks:
// these answers make hwloc leave their names out, and the program needs no libudev.
extern "C" {
struct udev;
struct udev_device;
udev* udev_new() { return nullptr; }
udev* udev_unref(udev*) { return nullptr; }
udev_device* udev_device_new_from_subsystem_sysname(udev*, const char*, const char*) { return nullptr; }
udev_device* udev_device_unref(udev_device*) { return nullptr; }
const char* udev_device_get_property_value(udev_device*, const char*) { return nullptr; }
}
