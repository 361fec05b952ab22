// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxPath bounds a path, in bytes.
const maxPath = 256

// parsePath validates the path at which pods serve their metrics, and fills in the
// default. Tenants choose the path, so it must not be able to select a host: it is
// an absolute path of plain segments, without query, fragment or percent-encoding.
func parsePath(path string, at *field.Path) (string, *field.Error) {
	if path == "" {
		return defaultPath, nil
	}
	if len(path) > maxPath {
		return "", field.TooLong(at, path[:maxPath], maxPath)
	}
	segments, absolute := strings.CutPrefix(path, "/")
	if !absolute {
		return "", field.Invalid(at, path, "must begin with one /, such as /metrics")
	}
	for i := range len(segments) {
		if !isPathByte(segments[i]) {
			return "", field.Invalid(at, path, "must consist of letters, digits, / and -._~!$&'()*+,;=:@ only; a query string and percent-encoding are not supported")
		}
	}
	if segments == "" {
		return path, nil
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(segments, "/"), "/") {
		switch segment {
		case "":
			return "", field.Invalid(at, path, "must not have an empty segment (//)")
		case ".", "..":
			return "", field.Invalid(at, path, "must not have a segment that is . or ..")
		}
	}
	return path, nil
}

// isPathByte reports whether b is allowed in a path: / and RFC 3986's pchar, but no
// percent-encoding, which could hide other characters.
func isPathByte(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		return true
	}
	return strings.IndexByte("/-._~!$&'()*+,;=:@", b) >= 0
}

// validatePort checks a port, which is the number or the name of a container port.
func validatePort(port *intstr.IntOrString, at *field.Path) *field.Error {
	switch {
	case port == nil:
		return nil
	case port.Type == intstr.Int:
		if len(validation.IsValidPortNum(int(port.IntVal))) > 0 {
			return field.Invalid(at, port.IntVal, "must lie between 1 and 65535")
		}
	case len(validation.IsValidPortName(port.StrVal)) > 0:
		return field.Invalid(at, port.StrVal, "must be a number from 1 to 65535 without quotes, or the name of a container port: "+
			"at most 15 lower-case letters, digits and single hyphens, with a letter among them")
	}
	return nil
}
