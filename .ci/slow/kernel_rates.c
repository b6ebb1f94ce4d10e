/* Billions of products a second of one thread, by instructions (AVX2, AVX-VNNI, AVX512-VNNI), form (in native.h's order) and rows, over a matrix that fits in cache:
 *
 *   gcc -O3 -ffp-contract=off -pthread -o rates .ci/slow/kernel_rates.c runtime/native/src/[a-z]*.c -lm && ./rates
 */
#include "../../runtime/native/src/native.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+1e-9*t.tv_nsec;}
int main(){
  int k=576,n=1536; static const int size[]={BYTES_OF_FORMS};
  // clock estimate
  { double t=now(); unsigned long c=0; for(long i=0;i<200000000;i++){ __asm__ volatile("add $1,%0":"+r"(c)); } double d=now()-t; printf("~%.2f GHz (dep add)\n",0.2/d); }
  for(int set=0;set<3;set++) if(native_instructions(set)==set) for(int form=0;form<FORMS;form++){
    uint8_t*d=aligned_alloc(64,((size_t)n/8*(k/32)*size[form]+127)/64*64); for(size_t i=0;i<(size_t)n/8*(k/32)*size[form];i++) d[i]=rand()%17;
    Matrix m={d,NULL,n,k,form,1.0f};
    static const int ROWS[]={1,2,3,4,5,6,7,8,16,32,64};
    for(int w=0;w<11;w++){ const int rows=ROWS[w];
      int8_t*q=malloc(rows*k); for(int i=0;i<rows*k;i++) q[i]=rand()%255-127;
      float*s=malloc(rows*k/8),*su=malloc(rows*k/8); for(int i=0;i<rows*k/32;i++) s[i]=su[i]=1;
      int32_t*m32=calloc(rows,k/4); Quantised x={q,s,su,m32,k}; float*y=malloc(4*(size_t)rows*n);
      double best=1e9; for(int r=0;r<20;r++){ double t=now(); for(int j=0;j<10;j++) matmul(&m,&x,(Span){0,rows},0,n/8,y,n); t=(now()-t)/10; if(t<best)best=t; }
      printf("set %d form %d rows %d: %.1f GMAC/s\n",set,form,rows,(double)rows*n*k/best/1e9);
    }
  }
}
