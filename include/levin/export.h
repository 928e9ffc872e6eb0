// Symbol visibility of the library: everything is hidden except what is marked LEVIN_API.
#pragma once

#if defined(__GNUC__)
#define LEVIN_API __attribute__((visibility("default")))
#else
#define LEVIN_API
#endif
