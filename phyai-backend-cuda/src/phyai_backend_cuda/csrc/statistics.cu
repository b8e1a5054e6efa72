// Statistics of the rows of x, which no product wrote: see statistics.cuh. Eight threads to a part of a row.
#include "statistics.cuh"

extern "C" __global__ void __launch_bounds__(128)
    row_statistics(const elem* x, long long x_row, int M, int columns, float2* written) {
    launch_next();
    const int parts = columns / STATISTICS;
    const long long part = blockIdx.x * 16ll + threadIdx.x / 8, row = part / parts;
    wait_previous();
    const bool here = row < M;
    const elem* at = x + row * x_row + part % parts * STATISTICS + threadIdx.x % 8 * 8;
    const uint4 units = here ? load_written4(at) : make_uint4(0, 0, 0, 0);
    const float2 pairs[4] = {unpack_elem(units.x), unpack_elem(units.y), unpack_elem(units.z), unpack_elem(units.w)};
    RowSums sums;
#pragma unroll
    for (int i = 0; i < 4; i++) sums.add(pairs[i].x, pairs[i].y);
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sums.add_neighbour(d);
    if (here && threadIdx.x % 8 == 0) written[part % parts * M + row] = sums.statistics();
}
