// SPDX-License-Identifier: Apache-2.0

// The functions that go-dcgm binds and the fake does not answer. DCGM's headers
// are left out here: a caller looks at the return code only, in any signature.
#include <stddef.h>

enum { NOT_SUPPORTED = -6 };

#define STUB(name, code) \
	int name(void); \
	int name(void) { return code; }

STUB(dcgmAttachDriver, NOT_SUPPORTED)
STUB(dcgmCreateFakeEntities, NOT_SUPPORTED)
STUB(dcgmDetachDriver, NOT_SUPPORTED)
STUB(dcgmGetPidInfo, NOT_SUPPORTED)
STUB(dcgmHealthGet, NOT_SUPPORTED)
STUB(dcgmInjectFieldValue, NOT_SUPPORTED)
STUB(dcgmIntrospectGetHostengineCpuUtilization, NOT_SUPPORTED)
STUB(dcgmIntrospectGetHostengineMemoryUsage, NOT_SUPPORTED)
STUB(dcgmPolicyGet, NOT_SUPPORTED)
STUB(dcgmPolicyRegister_v2, NOT_SUPPORTED)
STUB(dcgmPolicySet, NOT_SUPPORTED)
STUB(dcgmPolicyUnregister, NOT_SUPPORTED)
STUB(dcgmRunDiagnostic, NOT_SUPPORTED)
STUB(dcgmWatchPidFields, NOT_SUPPORTED)

void *dcgmGetErrorMeta(int);
void *dcgmGetErrorMeta(int code) {
	(void)code;
	return NULL;
}
