// SPDX-License-Identifier: Apache-2.0

// Package docs tests the documentation: links, examples and commands.
//
// A fenced block says by its info string what it is:
//
//	```sh test              a script that runs here, in a directory with examples/
//	```text output          what the script above prints: each line in this order;
//	                        a line of … stands for any lines
//	```yaml examples/F      a part of that file, or all of it
//
// A yaml block that is a GPUAutoscaler, or some fields of its spec, has to be
// valid whatever its info string is.
package docs
