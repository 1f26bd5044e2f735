// Never finishes loading.
#include <unistd.h>

[[gnu::constructor]] static void hang() {
  while (true) ::pause();
}
