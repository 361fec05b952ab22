// SPDX-License-Identifier: Apache-2.0

// Package stamp is what identifies a release: version, commit and time.
package stamp

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

// Stamp identifies a release.
type Stamp struct {
	Version  string    // git describe: a tag such as "v0.1.0", or what is between two
	Revision string    // hash of the commit
	Created  time.Time // of every file of the release
}

// Flags registers -version and -revision.
func (s *Stamp) Flags(fs *flag.FlagSet) {
	fs.StringVar(&s.Version, "version", "unknown", "version of the release, as git describe prints it")
	fs.StringVar(&s.Revision, "revision", "", "commit that the programs were built from")
}

// ReadTime sets Created from the environment's SOURCE_DATE_EPOCH, in seconds; 1970 if it is not set.
func (s *Stamp) ReadTime() error {
	epoch := cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0")
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH=%s is not a number of seconds since 1970", epoch)
	}
	s.Created = time.Unix(seconds, 0).UTC()
	return nil
}

var (
	tagged  = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]+))?$`)
	between = regexp.MustCompile(`^v?(\d+\.\d+\.\d+.*)-(\d+)-g([0-9a-f]+)(-dirty)?$`)
	unfit   = regexp.MustCompile(`[^0-9A-Za-z.]`)
)

// PackageVersion is the version in a form that dpkg and rpm order rightly: a release candidate before its release, and
// a build between two tags after the first of them.
func (s Stamp) PackageVersion() string {
	if m := between.FindStringSubmatch(s.Version); m != nil {
		return Stamp{Version: m[1]}.PackageVersion() + "+" + m[2] + ".g" + m[3]
	}
	if m := tagged.FindStringSubmatch(s.Version); m != nil {
		if m[2] != "" {
			return m[1] + "~" + m[2]
		}
		return m[1]
	}
	return "0.0.0~git." + unfit.ReplaceAllString(s.Version, ".")
}
