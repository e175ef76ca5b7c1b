#!/usr/bin/env bash
# Installs the Debian packages that optional parts use: a browser, a desktop, ffmpeg, Mesa's software renderers, fonts.
# Never stops a build for want of them, unless CI=true.
set -euo pipefail
export PATH="$PATH:/sbin:/usr/sbin" DEBIAN_FRONTEND=noninteractive

program() { command -v "$1" >/dev/null; }
library() { { ldconfig -p 2>/dev/null || true; } | grep -qF "$1"; }
font() { [ -n "$(find /usr/share/fonts /usr/local/share/fonts "$HOME/.fonts" "$HOME/.local/share/fonts" -name "$1" -print -quit 2>/dev/null)" ]; }

missing() { # the packages that are not there, by what they bring: a package's own name differs between distributions
    program chromium || program chromium-browser || program google-chrome || echo chromium
    program chromedriver || echo chromium-driver
    local name
    for name in openbox xdotool xclip mate-calc l3afpad; do program "$name" || echo "$name"; done
    program Xvfb || echo xvfb
    program dbus-daemon || echo dbus
    [ -x /usr/libexec/at-spi-bus-launcher ] || echo at-spi2-core
    program ffmpeg || echo ffmpeg
    library libGL.so.1 || echo libgl1
    library libEGL.so.1 || echo libegl1
    library libOSMesa.so || echo libosmesa6
    font DejaVuSans.ttf || echo fonts-dejavu-core
    [ -n "$(fc-list :lang=zh 2>/dev/null | head -n 1)" ] || font wqy-microhei.ttc || echo fonts-wqy-microhei
}

install() { # as root, one by one if need be: one that a release dropped must not take the others with it
    local -a apt=("$@" apt-get -o DPkg::Lock::Timeout=120 install --quiet --yes --no-install-recommends)
    local package
    "${apt[@]}" "${packages[@]}" && return
    "$@" apt-get --quiet update || true
    "${apt[@]}" "${packages[@]}" && return
    for package in "${packages[@]}"; do "${apt[@]}" "$package" || true; done
}

mapfile -t packages < <(missing)
[ ${#packages[@]} -gt 0 ] || exit 0

why="could not install"
if ! program apt-get; then
    why="no apt-get here; install by hand what you need of"
elif [ "$(id -u)" = 0 ]; then
    install env >&2
elif sudo -n true 2>/dev/null; then
    install sudo -n env DEBIAN_FRONTEND=noninteractive >&2
else
    why="not root; to get all tests: sudo apt-get install"
fi

mapfile -t packages < <(missing)
[ ${#packages[@]} -gt 0 ] || exit 0
echo "system: $why ${packages[*]}" >&2
# Mesa 25.1 dropped OSMesa; EGL renders without a screen as well
if [ "${CI:-}" = true ] && [ "${packages[*]}" != libosmesa6 ]; then exit 1; fi
